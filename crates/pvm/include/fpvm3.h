!     PVM 3.4's constants for Fortran, in fixed and in free form.
!
!     The names and values are those of PVM's own fpvm3.h, so that
!     programs need only be recompiled:
!
!     PVM version 3.4:  Parallel Virtual Machine System
!     University of Tennessee, Knoxville TN.
!     Oak Ridge National Laboratory, Oak Ridge TN.
!     Emory University, Atlanta GA.
!     Authors:  J. J. Dongarra, G. E. Fagg, M. Fischer, G. A. Geist,
!     J. A. Kohl, R. J. Manchek, P. Mucci, P. M. Papadopoulos,
!     S. L. Scott, and V. S. Sunderam
!     (C) 1997 All Rights Reserved
!
!     Permission to use, copy, modify, and distribute this software and
!     its documentation for any purpose and without fee is hereby
!     granted provided that the above copyright notice appear in all
!     copies and that both the copyright notice and this permission
!     notice appear in supporting documentation.
!
!     Neither the Institutions (Emory University, Oak Ridge National
!     Laboratory, and University of Tennessee) nor the Authors make any
!     representations about the suitability of this software for any
!     purpose.  This software is provided ``as is'' without express or
!     implied warranty.

!     Where and how tasks are started: pvmfspawn. Old names are last.
      integer PVMTASKDEFAULT, PVMTASKHOST, PVMTASKARCH, PVMTASKDEBUG
      integer PVMTASKTRACE, PVMMPPFRONT, PVMHOSTCOMPL, PVMNOSPAWNPARENT
      integer PVMHOST, PVMARCH, PVMDEBUG, PVMTRACE
      parameter (PVMTASKDEFAULT = 0, PVMTASKHOST = 1, PVMTASKARCH = 2)
      parameter (PVMTASKDEBUG = 4, PVMTASKTRACE = 8, PVMMPPFRONT = 16)
      parameter (PVMHOSTCOMPL = 32, PVMNOSPAWNPARENT = 64, PVMHOST = 1)
      parameter (PVMARCH = 2, PVMDEBUG = 4, PVMTRACE = 8)

!     How data are laid out in a message: pvmfinitsend, pvmfmkbuf.
      integer PVMDATADEFAULT, PVMDATARAW, PVMDATAINPLACE, PVMDATATRACE
      integer PVMDEFAULT, PVMRAW, PVMINPLACE
      parameter (PVMDATADEFAULT = 0, PVMDATARAW = 1, PVMDATAINPLACE = 2)
      parameter (PVMDATATRACE = 4, PVMDEFAULT = 0, PVMRAW = 1)
      parameter (PVMINPLACE = 2)

!     Events that a task can be notified of: pvmfnotify.
      integer PVMTASKEXIT, PVMHOSTDELETE, PVMHOSTADD, PVMROUTEADD
      integer PVMROUTEDELETE, PVMNOTIFYCANCEL
      parameter (PVMTASKEXIT = 1, PVMHOSTDELETE = 2, PVMHOSTADD = 3)
      parameter (PVMROUTEADD = 4, PVMROUTEDELETE = 5)
      parameter (PVMNOTIFYCANCEL = 256)

!     Types of data: pvmfpack, pvmfpsend, pvmfreduce and others.
      integer STRING, BYTE1, INTEGER2, INTEGER4, REAL4, COMPLEX8, REAL8
      integer COMPLEX16, INTEGER8
      parameter (STRING = 0, BYTE1 = 1, INTEGER2 = 2, INTEGER4 = 3)
      parameter (REAL4 = 4, COMPLEX8 = 5, REAL8 = 6, COMPLEX16 = 7)
      parameter (INTEGER8 = 8)

!     Options: pvmfsetopt, pvmfgetopt.
      integer PVMROUTE, PVMDEBUGMASK, PVMAUTOERR, PVMOUTPUTTID
      integer PVMOUTPUTCODE, PVMTRACETID, PVMTRACECODE, PVMTRACEBUFFER
      integer PVMTRACEOPTIONS, PVMFRAGSIZE, PVMRESVTIDS, PVMSOUTPUTTID
      integer PVMSOUTPUTCODE, PVMSTRACETID, PVMSTRACECODE
      integer PVMSTRACEBUFFER, PVMSTRACEOPTIONS, PVMSHOWTIDS
      integer PVMPOLLTYPE, PVMPOLLTIME, PVMOUTPUTCTX, PVMTRACECTX
      integer PVMSOUTPUTCTX, PVMSTRACECTX, PVMNORESET
      parameter (PVMROUTE = 1, PVMDEBUGMASK = 2, PVMAUTOERR = 3)
      parameter (PVMOUTPUTTID = 4, PVMOUTPUTCODE = 5, PVMTRACETID = 6)
      parameter (PVMTRACECODE = 7, PVMTRACEBUFFER = 8)
      parameter (PVMTRACEOPTIONS = 9, PVMFRAGSIZE = 10)
      parameter (PVMRESVTIDS = 11, PVMSOUTPUTTID = 12)
      parameter (PVMSOUTPUTCODE = 13, PVMSTRACETID = 14)
      parameter (PVMSTRACECODE = 15, PVMSTRACEBUFFER = 16)
      parameter (PVMSTRACEOPTIONS = 17, PVMSHOWTIDS = 18)
      parameter (PVMPOLLTYPE = 19, PVMPOLLTIME = 20, PVMOUTPUTCTX = 21)
      parameter (PVMTRACECTX = 22, PVMSOUTPUTCTX = 23)
      parameter (PVMSTRACECTX = 24, PVMNORESET = 25)

!     Values of options.
      integer PVMDONTROUTE, PVMALLOWDIRECT, PVMROUTEDIRECT, PVMTRACEFULL
      integer PVMTRACETIME, PVMTRACECOUNT, PVMPOLLCONSTANT, PVMPOLLSLEEP
      parameter (PVMDONTROUTE = 1, PVMALLOWDIRECT = 2)
      parameter (PVMROUTEDIRECT = 3, PVMTRACEFULL = 1, PVMTRACETIME = 2)
      parameter (PVMTRACECOUNT = 3, PVMPOLLCONSTANT = 1)
      parameter (PVMPOLLSLEEP = 2)

!     Mailboxes: pvmfputinfo, pvmfrecvinfo.
      integer PVMMBOXDEFAULT, PVMMBOXPERSISTENT, PVMMBOXMULTIINSTANCE
      integer PVMMBOXOVERWRITABLE, PVMMBOXFIRSTAVAIL
      integer PVMMBOXREADANDDELETE, PVMMBOXWAITFORINFO
      parameter (PVMMBOXDEFAULT = 0, PVMMBOXPERSISTENT = 1)
      parameter (PVMMBOXMULTIINSTANCE = 2, PVMMBOXOVERWRITABLE = 4)
      parameter (PVMMBOXFIRSTAVAIL = 8, PVMMBOXREADANDDELETE = 16)
      parameter (PVMMBOXWAITFORINFO = 32)

!     Results of routines. The last two names are of PVM 3.3.
      integer PvmOk, PvmBadParam, PvmMismatch, PvmOverflow, PvmNoData
      integer PvmNoHost, PvmNoFile, PvmDenied, PvmNoMem, PvmBadMsg
      integer PvmSysErr, PvmNoBuf, PvmNoSuchBuf, PvmNullGroup
      integer PvmDupGroup, PvmNoGroup, PvmNotInGroup, PvmNoInst
      integer PvmHostFail, PvmNoParent, PvmNotImpl, PvmDSysErr
      integer PvmBadVersion, PvmOutOfRes, PvmDupHost, PvmCantStart
      integer PvmAlready, PvmNoTask, PvmNotFound, PvmExists
      integer PvmHostrNMstr, PvmParentNotSet, PvmIPLoopback, PvmNoEntry
      integer PvmDupEntry
      parameter (PvmOk = 0, PvmBadParam = -2, PvmMismatch = -3)
      parameter (PvmOverflow = -4, PvmNoData = -5, PvmNoHost = -6)
      parameter (PvmNoFile = -7, PvmDenied = -8, PvmNoMem = -10)
      parameter (PvmBadMsg = -12, PvmSysErr = -14, PvmNoBuf = -15)
      parameter (PvmNoSuchBuf = -16, PvmNullGroup = -17)
      parameter (PvmDupGroup = -18, PvmNoGroup = -19)
      parameter (PvmNotInGroup = -20, PvmNoInst = -21)
      parameter (PvmHostFail = -22, PvmNoParent = -23, PvmNotImpl = -24)
      parameter (PvmDSysErr = -25, PvmBadVersion = -26)
      parameter (PvmOutOfRes = -27, PvmDupHost = -28)
      parameter (PvmCantStart = -29, PvmAlready = -30, PvmNoTask = -31)
      parameter (PvmNotFound = -32, PvmExists = -33)
      parameter (PvmHostrNMstr = -34, PvmParentNotSet = -35)
      parameter (PvmIPLoopback = -36, PvmNoEntry = -32)
      parameter (PvmDupEntry = -33)
