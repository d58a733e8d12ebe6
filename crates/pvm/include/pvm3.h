/* PVM 3.4's interface, for programs that run as tasks.
 *
 * The names, values and prototypes are those of PVM's own pvm3.h, so that programs need only be
 * recompiled:
 *
 *         PVM version 3.4:  Parallel Virtual Machine System
 *    University of Tennessee, Knoxville TN.  Oak Ridge National Laboratory, Oak Ridge TN.
 *    Emory University, Atlanta GA.
 *    Authors:  J. J. Dongarra, G. E. Fagg, M. Fischer, G. A. Geist, J. A. Kohl, R. J. Manchek,
 *              P. Mucci, P. M. Papadopoulos, S. L. Scott, and V. S. Sunderam
 *                        (C) 1997 All Rights Reserved
 *
 *    Permission to use, copy, modify, and distribute this software and its documentation for any
 *    purpose and without fee is hereby granted provided that the above copyright notice appear in
 *    all copies and that both the copyright notice and this permission notice appear in supporting
 *    documentation.
 *
 *    Neither the Institutions (Emory University, Oak Ridge National Laboratory, and University of
 *    Tennessee) nor the Authors make any representations about the suitability of this software for
 *    any purpose.  This software is provided ``as is'' without express or implied warranty. */
#ifndef _PVM3_H_
#define _PVM3_H_

#include <sys/time.h>

/* Upcall's library has more than PVM's: upvm.h. */
#define UPVM 1

#define PVM_VER "3.4.6"
#define PVM_MAJOR_VERSION 3
#define PVM_MINOR_VERSION 4
#define PVM_PATCH_VERSION 6

/* How data are laid out in a message: pvm_initsend, pvm_mkbuf. */
#define PvmDataDefault 0 /* with XDR's sizes: multiples of 4 bytes */
#define PvmDataRaw 1     /* as in memory */
#define PvmDataInPlace 2 /* as in memory, and copied when they are sent */
#define PvmDataFoo PvmDataDefault
#define PvmDataTrace 4   /* for programs' own trace events */

/* Where and how tasks are started: pvm_spawn. */
#define PvmTaskDefault 0
#define PvmTaskHost 1       /* on a host */
#define PvmTaskArch 2       /* on hosts of an architecture */
#define PvmTaskDebug 4      /* in a debugger */
#define PvmTaskTrace 8      /* traced */
#define PvmMppFront 16      /* on a service node */
#define PvmHostCompl 32     /* on any host but the given one */
#define PvmNoSpawnParent 64 /* without a parent */

/* Events that a task can be notified of: pvm_notify. */
#define PvmTaskExit 1
#define PvmHostDelete 2
#define PvmHostAdd 3
#define PvmRouteAdd 4
#define PvmRouteDelete 5
#define PvmNotifyCancel 256 /* with one of these: withdraws the request */

/* Options and their values: pvm_setopt, pvm_getopt. */
#define PvmRoute 1
#define PvmDontRoute 1
#define PvmAllowDirect 2
#define PvmRouteDirect 3
#define PvmDebugMask 2
#define PvmAutoErr 3        /* errors are printed (1), end the task (2), abort it (3) */
#define PvmOutputTid 4      /* the task that gets the children's output */
#define PvmOutputCode 5
#define PvmTraceTid 6
#define PvmTraceCode 7
#define PvmTraceBuffer 8
#define PvmTraceOptions 9
#define PvmTraceFull 1
#define PvmTraceTime 2
#define PvmTraceCount 3
#define PvmFragSize 10
#define PvmResvTids 11
#define PvmSelfOutputTid 12 /* the task that gets this task's output */
#define PvmSelfOutputCode 13
#define PvmSelfTraceTid 14
#define PvmSelfTraceCode 15
#define PvmSelfTraceBuffer 16
#define PvmSelfTraceOptions 17
#define PvmShowTids 18      /* pvm_catchout labels each line with its task */
#define PvmPollType 19
#define PvmPollConstant 1
#define PvmPollSleep 2
#define PvmPollTime 20
#define PvmOutputContext 21
#define PvmTraceContext 22
#define PvmSelfOutputContext 23
#define PvmSelfTraceContext 24
#define PvmNoReset 25       /* this task outlives a reset */

/* The owner of a trace mask: pvm_gettmask, pvm_settmask. */
#define PvmTaskSelf 0
#define PvmTaskChild 1

/* The context of programs that ask for no other. */
#define PvmBaseContext 0

/* Mailboxes: pvm_putinfo, pvm_recvinfo. */
#define PvmMboxDefault 0
#define PvmMboxPersistent 1    /* remains after its owner ends */
#define PvmMboxMultiInstance 2 /* one of several entries of a name */
#define PvmMboxOverWritable 4  /* other tasks may replace and delete it */
#define PvmMboxFirstAvail 8    /* the first entry from the index on */
#define PvmMboxReadAndDelete 16
#define PvmMboxWaitForInfo 32
#define PvmMboxMaxFlag 512
/* An index in the bits above the flags. */
#define PvmMboxDirectIndexShift 10
#define PvmMboxMaxDirectIndex ((unsigned)1 << (31 - PvmMboxDirectIndexShift))
#define PvmMboxDirectIndexOf(_flags)                                          \
    (((_flags) & ((PvmMboxMaxDirectIndex - 1) << PvmMboxDirectIndexShift)) >> \
     PvmMboxDirectIndexShift)
#define PvmMboxDirectIndex(_index)                                     \
    (((_index) >= PvmMboxMaxDirectIndex)                               \
         ? (fprintf(stderr, "Mbox Direct Index Too Large: %d >= %d\n", \
                    (int)(_index), (int)PvmMboxMaxDirectIndex), 0)     \
         : ((_index) << PvmMboxDirectIndexShift))

/* Mailboxes of tasks that replace parts of the system. */
#define PVMNORESETCLASS "###_PVM_NO_RESET_###"
#define PVMHOSTERCLASS "###_PVM_HOSTER_###"
#define PVMTASKERCLASS "###_PVM_TASKER_###"
#define PVMTRACERCLASS "###_PVM_TRACER_###"
#define PVMRMCLASS "###_PVM_RM_###"

/* Results of functions. */
#define PvmOk 0
#define PvmBadParam -2      /* bad parameter */
#define PvmMismatch -3      /* parameters do not match */
#define PvmOverflow -4      /* value too large */
#define PvmNoData -5        /* end of buffer */
#define PvmNoHost -6        /* no such host */
#define PvmNoFile -7        /* no such file */
#define PvmDenied -8        /* permission denied */
#define PvmNoMem -10        /* no memory */
#define PvmBadMsg -12       /* message cannot be decoded */
#define PvmSysErr -14       /* no daemon */
#define PvmNoBuf -15        /* no active buffer */
#define PvmNoSuchBuf -16    /* no such buffer */
#define PvmNullGroup -17    /* group without a name */
#define PvmDupGroup -18     /* already in the group */
#define PvmNoGroup -19      /* no such group */
#define PvmNotInGroup -20   /* not in the group */
#define PvmNoInst -21       /* no such instance */
#define PvmHostFail -22     /* host failed */
#define PvmNoParent -23     /* no parent */
#define PvmNotImpl -24      /* not implemented */
#define PvmDSysErr -25      /* system error */
#define PvmBadVersion -26   /* versions do not match */
#define PvmOutOfRes -27     /* out of resources */
#define PvmDupHost -28      /* host exists already */
#define PvmCantStart -29    /* daemon cannot be started */
#define PvmAlready -30      /* already in progress */
#define PvmNoTask -31       /* no such task */
#define PvmNotFound -32     /* not found */
#define PvmExists -33       /* already exists */
#define PvmHostrNMstr -34   /* hoster is not on the master host */
#define PvmParentNotSet -35 /* spawned with PvmNoSpawnParent */
#define PvmIPLoopback -36   /* master host's address is loopback */
/* Names of PVM 3.3. */
#define PvmNoEntry PvmNotFound
#define PvmDupEntry PvmDenied

/* Types of data: pvm_psend, pvm_precv, pvm_reduce, pvm_gather, pvm_scatter. */
#define PVM_STR 0
#define PVM_BYTE 1
#define PVM_SHORT 2
#define PVM_INT 3
#define PVM_FLOAT 4
#define PVM_CPLX 5
#define PVM_DOUBLE 6
#define PVM_DCPLX 7
#define PVM_LONG 8
#define PVM_USHORT 9
#define PVM_UINT 10
#define PVM_ULONG 11

/* A host: pvm_config. */
struct pvmhostinfo {
    int hi_tid;   /* its daemon's number */
    char *hi_name;
    char *hi_arch;
    int hi_speed; /* relative to other hosts */
    int hi_dsig;  /* signature of its data format */
};

/* A task: pvm_tasks. */
struct pvmtaskinfo {
    int ti_tid;
    int ti_ptid;    /* its parent */
    int ti_host;    /* its host's daemon */
    int ti_flag;    /* its state */
    char *ti_a_out; /* the program's name */
    int ti_pid;
};

/* A message's header: pvm_getminfo, pvm_setminfo. */
struct pvmminfo {
    int len; /* length of the body in bytes */
    int ctx; /* context */
    int tag;
    int wid; /* wait id */
    int enc; /* encoding */
    int crc;
    int src; /* sender */
    int dst; /* receiver */
};

/* All entries of a name: pvm_getmboxinfo. */
struct pvmmboxinfo {
    char *mi_name;
    int mi_nentries;
    int *mi_indices;
    int *mi_owners;
    int *mi_flags;
};

/* A name for a temporary file. */
#ifdef NOTMPNAM
#define PVMTMPNAMFUN(x) pvmtmpnam(x)
#define PVMTMPNAMLEN 128
#else
#define PVMTMPNAMFUN(x) tmpnam(x)
#ifdef L_tmpnam
#define PVMTMPNAMLEN L_tmpnam
#else
#define PVMTMPNAMLEN 128
#endif
#endif

/* Programs also use this name. */
#ifdef __ProtoGlarp__
#undef __ProtoGlarp__
#endif
#if defined(__STDC__) || defined(__cplusplus)
#define __ProtoGlarp__(x) x
#else
#define __ProtoGlarp__(x) ()
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Tasks. */
int pvm_mytid __ProtoGlarp__((void));
int pvm_parent __ProtoGlarp__((void));
int pvm_exit __ProtoGlarp__((void));
int pvm_spawn __ProtoGlarp__((char *, char **, int, char *, int, int *));
int pvm_kill __ProtoGlarp__((int));
int pvm_sendsig __ProtoGlarp__((int, int));
int pvm_pstat __ProtoGlarp__((int));
int pvm_tasks __ProtoGlarp__((int, int *, struct pvmtaskinfo **));
int pvm_siblings __ProtoGlarp__((int **));
int pvm_export __ProtoGlarp__((char *));
int pvm_unexport __ProtoGlarp__((char *));
#ifdef EOF /* <stdio.h> is included, so there is FILE */
int pvm_catchout __ProtoGlarp__((FILE *));
#endif
int pvm_notify __ProtoGlarp__((int, int, int, int *));

/* The machine. */
int pvm_config __ProtoGlarp__((int *, int *, struct pvmhostinfo **));
int pvm_addhosts __ProtoGlarp__((char **, int, int *));
int pvm_delhosts __ProtoGlarp__((char **, int, int *));
int pvm_mstat __ProtoGlarp__((char *));
int pvm_tidtohost __ProtoGlarp__((int));
int pvm_archcode __ProtoGlarp__((char *));
int pvm_hostsync __ProtoGlarp__((int, struct timeval *, struct timeval *));
int pvm_start_pvmd __ProtoGlarp__((int, char **, int));
int pvm_halt __ProtoGlarp__((void));
int pvm_getfds __ProtoGlarp__((int **));
int pvm_getnoresets __ProtoGlarp__((int **, int *));
int pvm_tickle __ProtoGlarp__((int, int *, int *, int *));
int pvm_reg_hoster __ProtoGlarp__((void));
int pvm_reg_rm __ProtoGlarp__((struct pvmhostinfo **));
int pvm_reg_tasker __ProtoGlarp__((void));
int pvm_reg_tracer __ProtoGlarp__((int, int, int, int, char *, int, int));
char *pvm_version __ProtoGlarp__((void));
char *pvmgetrsh __ProtoGlarp__((void));
char *pvmgettmp __ProtoGlarp__((void));
char *pvmtmpnam __ProtoGlarp__((char *));

/* Options and errors. */
int pvm_setopt __ProtoGlarp__((int, int));
int pvm_getopt __ProtoGlarp__((int));
int pvm_perror __ProtoGlarp__((char *));
char *pvm_strerror __ProtoGlarp__((void));

/* Buffers. */
int pvm_initsend __ProtoGlarp__((int));
int pvm_mkbuf __ProtoGlarp__((int));
int pvm_freebuf __ProtoGlarp__((int));
int pvm_getsbuf __ProtoGlarp__((void));
int pvm_setsbuf __ProtoGlarp__((int));
int pvm_getrbuf __ProtoGlarp__((void));
int pvm_setrbuf __ProtoGlarp__((int));
int pvm_bufinfo __ProtoGlarp__((int, int *, int *, int *));
int pvm_getminfo __ProtoGlarp__((int, struct pvmminfo *));
int pvm_setminfo __ProtoGlarp__((int, struct pvmminfo *));
#ifdef PVM33COMPAT
int pvm_getmwid __ProtoGlarp__((int));
int pvm_setmwid __ProtoGlarp__((int, int));
#endif

/* Packing. */
int pvm_packf __ProtoGlarp__((const char *, ...));
int pvm_pkbyte __ProtoGlarp__((char *, int, int));
int pvm_pkcplx __ProtoGlarp__((float *, int, int));
int pvm_pkdcplx __ProtoGlarp__((double *, int, int));
int pvm_pkdouble __ProtoGlarp__((double *, int, int));
int pvm_pkfloat __ProtoGlarp__((float *, int, int));
int pvm_pkint __ProtoGlarp__((int *, int, int));
int pvm_pklong __ProtoGlarp__((long *, int, int));
int pvm_pkshort __ProtoGlarp__((short *, int, int));
int pvm_pkstr __ProtoGlarp__((char *));
int pvm_pkuint __ProtoGlarp__((unsigned int *, int, int));
int pvm_pkulong __ProtoGlarp__((unsigned long *, int, int));
int pvm_pkushort __ProtoGlarp__((unsigned short *, int, int));
int pvm_pkmesg __ProtoGlarp__((int));
int pvm_pkmesgbody __ProtoGlarp__((int));

/* Unpacking. */
int pvm_unpackf __ProtoGlarp__((const char *, ...));
int pvm_upkbyte __ProtoGlarp__((char *, int, int));
int pvm_upkcplx __ProtoGlarp__((float *, int, int));
int pvm_upkdcplx __ProtoGlarp__((double *, int, int));
int pvm_upkdouble __ProtoGlarp__((double *, int, int));
int pvm_upkfloat __ProtoGlarp__((float *, int, int));
int pvm_upkint __ProtoGlarp__((int *, int, int));
int pvm_upklong __ProtoGlarp__((long *, int, int));
int pvm_upkshort __ProtoGlarp__((short *, int, int));
int pvm_upkstr __ProtoGlarp__((char *));
int pvm_upkuint __ProtoGlarp__((unsigned int *, int, int));
int pvm_upkulong __ProtoGlarp__((unsigned long *, int, int));
int pvm_upkushort __ProtoGlarp__((unsigned short *, int, int));
int pvm_upkmesg __ProtoGlarp__((void));

/* Sending and receiving. */
int pvm_send __ProtoGlarp__((int, int));
int pvm_mcast __ProtoGlarp__((int *, int, int));
int pvm_psend __ProtoGlarp__((int, int, void *, int, int));
int pvm_recv __ProtoGlarp__((int, int));
int pvm_nrecv __ProtoGlarp__((int, int));
int pvm_trecv __ProtoGlarp__((int, int, struct timeval *));
int pvm_precv __ProtoGlarp__((int, int, void *, int, int, int *, int *, int *));
int pvm_probe __ProtoGlarp__((int, int));
int (*pvm_recvf __ProtoGlarp__((int (*)(int, int, int)))) __ProtoGlarp__((int, int, int));
int pvm_addmhf __ProtoGlarp__((int, int, int, int (*)(int)));
int pvm_delmhf __ProtoGlarp__((int));

/* Contexts. */
int pvm_newcontext __ProtoGlarp__((void));
int pvm_setcontext __ProtoGlarp__((int));
int pvm_getcontext __ProtoGlarp__((void));
int pvm_freecontext __ProtoGlarp__((int));

/* Groups. */
int pvm_joingroup __ProtoGlarp__((char *));
int pvm_lvgroup __ProtoGlarp__((char *));
int pvm_gettid __ProtoGlarp__((char *, int));
int pvm_getinst __ProtoGlarp__((char *, int));
int pvm_gsize __ProtoGlarp__((char *));
int pvm_barrier __ProtoGlarp__((char *, int));
int pvm_bcast __ProtoGlarp__((char *, int));
int pvm_freezegroup __ProtoGlarp__((char *, int));
int pvm_gather __ProtoGlarp__((void *, void *, int, int, int, char *, int));
int pvm_scatter __ProtoGlarp__((void *, void *, int, int, int, char *, int));
int pvm_reduce __ProtoGlarp__((void (*)(int *, void *, void *, int *, int *), void *, int, int, int,
                               char *, int));
void PvmMax __ProtoGlarp__((int *, void *, void *, int *, int *));
void PvmMin __ProtoGlarp__((int *, void *, void *, int *, int *));
void PvmSum __ProtoGlarp__((int *, void *, void *, int *, int *));
void PvmProduct __ProtoGlarp__((int *, void *, void *, int *, int *));

/* Mailboxes. */
int pvm_putinfo __ProtoGlarp__((char *, int, int));
int pvm_recvinfo __ProtoGlarp__((char *, int, int));
int pvm_delinfo __ProtoGlarp__((char *, int, int));
int pvm_getmboxinfo __ProtoGlarp__((char *, int *, struct pvmmboxinfo **));
int pvm_insert __ProtoGlarp__((char *, int, int));
int pvm_lookup __ProtoGlarp__((char *, int, int *));
int pvm_delete __ProtoGlarp__((char *, int));

/* Names that PVM's own header lacks, but programs use. */
extern int pvm_errno;
extern char *pvm_errlist[]; /* error texts, indexed by the negated code */
extern int pvm_nerr;
int pvm_gettmask __ProtoGlarp__((int, char *));
int pvm_settmask __ProtoGlarp__((int, char *));
int pvm_grphostinfo __ProtoGlarp__((char *, int, int *, int *, int *));
void pvm_gsdump __ProtoGlarp__((void));

#ifdef __cplusplus
}
#endif

#endif
