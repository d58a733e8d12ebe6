c     The Fortran interface, in messages to itself: a line for each
c     check, the same under any PVM. (gfortran: -std=legacy)
      program fortran
      implicit none
      include 'fpvm3.h'
      integer me, info, kind
      call pvmfmytid(me)
      call errors
      do 10 kind = PVMDEFAULT, PVMRAW
         call types(me, kind)
   10 continue
      call buffers(me)
      call sending(me)
      call options
      print '(a)', 'with the machine:'
      call machine(me)
      call groups(me)
      call boxes(me)
      call contexts
      call pvmfexit(info)
      call check('exit', info)
      end

      subroutine check(what, value)
      character*(*) what
      integer value
      print '(2x,a,a,i0)', what, ' = ', value
      end

c     Sends the send buffer to this task, and receives it.
      subroutine bounce(me)
      integer me, info
      call pvmfsend(me, 1, info)
      call check('send', info)
      call pvmfrecv(me, 1, info)
      call check('received', min(info, 1))
      end

      subroutine errors
      implicit none
      include 'fpvm3.h'
      integer info, number, old
      character*12 text
      print '(a)', 'errors:'
      number = 0
      call pvmfpack(INTEGER4, number, 1, 1, info)
      call check('pack', info)
      call pvmfunpack(INTEGER4, number, 1, 1, info)
      call check('unpack', info)
      call pvmfperror('said', info)
      call check('perror', info)
      call pvmfinitsend(9, info)
      call check('initsend', info)
      call pvmfinitsend(PVMRAW, info)
      call pvmfpack(99, number, 1, 1, info)
      call check('pack of no type', info)
      call pvmfpack(-1, number, 1, 1, info)
      call check('pack of no type', info)
      call pvmfpack(INTEGER4, number, -1, 1, info)
      call check('pack', info)
      call pvmfsetopt(PVMAUTOERR, 0, old)
      call check('old', old)
      call pvmffreebuf(999, info)
      call check('freebuf', info)
      text = 'message'
      call pvmfperror(text(1:7), info)
      call pvmfsetopt(PVMAUTOERR, 1, old)
      call check('old', old)
      call pvmfgetopt(PVMAUTOERR, old)
      call check('new', old)
      end

      subroutine types(me, kind)
      implicit none
      include 'fpvm3.h'
      integer me, kind, info, bytes, tag, from
      integer*2 halves(6), halves2(6)
      integer*4 words(6), words2(6)
      integer*8 longs(3), longs2(3)
      real*4 reals(4), reals2(4)
      real*8 doubles(4), doubles2(4)
      complex*8 pairs(3), pairs2(3)
      complex*16 couples(2), couples2(2)
      character*1 letters(6), letters2(6)
      character*12 text, text2
      data halves /1, -2, 3, -4, 5, -6/
      data words /1, -2, 3, -4, 5, -6/
      data longs /1, 2, 3/
      data reals /0.5, 1.5, -2.5, 3.5/
      data doubles /0.5d0, 1.5d0, -2.5d0, 3.5d0/
      data pairs /(1.0, 2.0), (3.0, 4.0), (5.0, 6.0)/
      data couples /(1.0d0, 2.0d0), (3.0d0, 4.0d0)/
      data letters /'a', 'b', 'c', 'd', 'e', 'f'/
      print '(a,i0,a)', 'types, ', kind, ':'
      text = 'hello'
      text2 = '............'
      call pvmfinitsend(kind, info)
      call check('initsend', min(info, 1))
      call pvmfpack(STRING, text, 5, 1, info)
      call check('STRING', info)
      call pvmfpack(STRING, 'a literal', 9, 1, info)
      call check('STRING', info)
      call pvmfpack(BYTE1, letters, 6, 1, info)
      call check('BYTE1', info)
      call pvmfpack(INTEGER2, halves, 3, 2, info)
      call check('INTEGER2', info)
      call pvmfpack(INTEGER4, words, 6, 1, info)
      call check('INTEGER4', info)
      call pvmfpack(REAL4, reals, 4, 1, info)
      call check('REAL4', info)
      call pvmfpack(COMPLEX8, pairs, 2, 2, info)
      call check('COMPLEX8', info)
      call pvmfpack(REAL8, doubles, 2, 2, info)
      call check('REAL8', info)
      call pvmfpack(COMPLEX16, couples, 2, 1, info)
      call check('COMPLEX16', info)
      call bounce(me)
      call pvmfgetrbuf(info)
      call pvmfbufinfo(info, bytes, tag, from, info)
      call check('bufinfo', info)
      call check('bytes', bytes)
      call check('tag', tag)
      call check('from me', from - me)
      call pvmfunpack(STRING, text2, 5, 1, info)
      call check('STRING', info)
      print '(2x,a)', text2
      call pvmfunpack(STRING, text2, 9, 1, info)
      print '(2x,a)', text2
      call pvmfunpack(BYTE1, letters2, 6, 1, info)
      print '(2x,6a)', letters2
      call pvmfunpack(INTEGER2, halves2, 3, 1, info)
      print '(2x,3i4)', halves2(1), halves2(2), halves2(3)
      call pvmfunpack(INTEGER4, words2, 6, 1, info)
      print '(2x,6i4)', words2
      call pvmfunpack(REAL4, reals2, 4, 1, info)
      print '(2x,4f6.2)', reals2
      call pvmfunpack(COMPLEX8, pairs2, 2, 1, info)
      print '(2x,4f6.2)', pairs2(1), pairs2(2)
      call pvmfunpack(REAL8, doubles2, 2, 1, info)
      print '(2x,2f6.2)', doubles2(1), doubles2(2)
      call pvmfunpack(COMPLEX16, couples2, 2, 1, info)
      print '(2x,4f6.2)', couples2
      call pvmfunpack(INTEGER4, words2, 1, 1, info)
      call check('at the end', info)
      call pvmfinitsend(kind, info)
      call pvmfpack(INTEGER8, longs, 3, 1, info)
      call check('INTEGER8', info)
      call bounce(me)
      call pvmfunpack(INTEGER8, longs2, 3, 1, info)
      print '(2x,3i4)', longs2
      end

      subroutine buffers(me)
      implicit none
      include 'fpvm3.h'
      integer me, info, one, other, old, number
      print '(a)', 'buffers:'
      call pvmfmkbuf(PVMRAW, one)
      call pvmfmkbuf(PVMDEFAULT, other)
      call pvmfsetsbuf(one, old)
      call pvmfgetsbuf(info)
      call check('one', info - one)
      number = 7
      call pvmfpack(INTEGER4, number, 1, 1, info)
      call pvmfsetsbuf(other, old)
      call check('old', old - one)
      call pvmfsetrbuf(one, old)
      call pvmfgetrbuf(info)
      call check('one', info - one)
      number = 0
      call pvmfunpack(INTEGER4, number, 1, 1, info)
      call check('unpack', info)
      call check('number', number)
      call pvmffreebuf(one, info)
      call check('freebuf', info)
      call pvmffreebuf(other, info)
      call check('freebuf', info)
      call pvmfgetsbuf(info)
      call check('sbuf', info)
      call pvmfgetrbuf(info)
      call check('rbuf', info)
      end

      subroutine sending(me)
      implicit none
      include 'fpvm3.h'
      integer me, info, tid, tag, count, i
      integer words(4), got(4), tids(2)
      data words /1, 2, 3, 4/
      print '(a)', 'sending:'
      call pvmfnrecv(-1, 77, info)
      call check('nrecv', info)
      call pvmfprobe(-1, 77, info)
      call check('probe', info)
      call pvmftrecv(-1, 77, 0, 10, info)
      call check('trecv', info)
      call pvmftrecv(-1, 77, 0, 0, info)
      call check('trecv', info)
      call pvmfpsend(me, 5, words, 4, INTEGER4, info)
      call check('psend', info)
      call pvmfprecv(me, 5, got, 4, INTEGER4, tid, tag, count, info)
      call check('precv', info)
      print '(2x,4i4)', got
      call check('tid', tid - me)
      call check('tag', tag)
      call check('count', count)
      call pvmfpsend(me, 6, words, 4, 99, info)
      call check('psend of no type', info)
      call pvmfinitsend(PVMRAW, info)
      call pvmfpack(INTEGER4, words, 4, 1, info)
      call pvmfsend(me, 8, info)
      call pvmftrecv(me, 8, -1, 0, info)
      call check('trecv', min(info, 1))
      tids(1) = me
      tids(2) = me
      call pvmfmcast(2, tids, 9, info)
      call check('mcast', info)
      call pvmfsend(0, 9, info)
      call check('send', info)
      call pvmfdelmhf(99, info)
      call check('delmhf', info)
      i = 0
      call pvmfsleep(i)
      end

      subroutine options
      implicit none
      include 'fpvm3.h'
      integer info, i
      print '(a)', 'options:'
      do 10 i = PVMROUTE, PVMNORESET, 4
         call pvmfgetopt(i, info)
         if (i .eq. PVMROUTE) call check('route', info)
   10 continue
      call pvmfsetopt(PVMROUTE, PVMROUTEDIRECT, info)
      call check('old', info)
      call pvmfgetopt(PVMROUTE, info)
      call check('new', info)
      call pvmfsetopt(PVMROUTE, 77, info)
      call check('bad', info)
      call pvmfarchcode('LINUX64', info)
      call check('archcode', info)
      call pvmfarchcode('LINUX64        ', info)
      call check('archcode', info)
      call pvmfmstat('no.such.host   ', info)
      call check('mstat', info)
      end

      subroutine machine(me)
      implicit none
      include 'fpvm3.h'
      integer me, info, hosts, archs, dtid, speed, i, tid, parent
      integer host, flags, count, number, seconds, micros
      character*40 name, arch, file
      print '(a)', 'machine:'
      hosts = 0
      call pvmfconfig(hosts, archs, dtid, name, arch, speed, info)
      call check('config', info)
      call check('hosts', hosts)
      call check('archs', archs)
      call check('speed', speed)
      print '(2x,3a)', 'arch "', arch, '"'
      call pvmftidtohost(me, info)
      call check('tidtohost', info - dtid)
      number = 0
      call pvmftasks(me, count, tid, parent, host, flags, file, info)
      call check('tasks', info)
      call check('count', count)
      call check('tid', tid - me)
      call check('host', host - dtid)
      call pvmfpstat(me, info)
      call check('pstat', info)
      call pvmfpstat(0, info)
      call check('pstat', info)
      call pvmfnotify(PVMTASKEXIT, 3, 0, tid, info)
      call check('notify', info)
      call pvmfspawn('no-such-program', PVMDEFAULT, '*', 1, tid, info)
      call check('spawn', info)
      call check('its code', tid)
      call pvmfhostsync(dtid, seconds, micros, i, number, info)
      call check('hostsync', info)
c     A daemon's clock is slightly ahead of this one, or behind it.
      call check('ahead', merge(0, 1, abs(i) .le. 1))
      end

      subroutine groups(me)
      implicit none
      include 'fpvm3.h'
      integer me, info, words(3), got(3), i
      external PvmSum
      character*20 name
      data words /1, 2, 3/
      print '(a)', 'groups:'
      name = 'fortran'
      call pvmfjoingroup(name, info)
      call check('joingroup', info)
      call pvmfjoingroup('fortran', info)
      call check('joingroup', info)
      call pvmfgsize(name, info)
      call check('gsize', info)
      call pvmfgettid(name, 0, info)
      call check('gettid', info - me)
      call pvmfgetinst(name, me, info)
      call check('getinst', info)
      call pvmfbarrier(name, 1, info)
      call check('barrier', info)
      call pvmfreduce(PvmSum, words, 3, INTEGER4, 4, name, 0, info)
      call check('reduce', info)
      print '(2x,3i4)', words
      call pvmfgather(got, words, 3, INTEGER4, 5, name, 0, info)
      call check('gather', info)
      print '(2x,3i4)', got
      call pvmfscatter(got, words, 3, INTEGER4, 6, name, 0, info)
      call check('scatter', info)
      print '(2x,3i4)', got
      call pvmfinitsend(PVMRAW, i)
      call pvmfbcast(name, 7, info)
      call check('bcast', info)
      call pvmflvgroup(name, info)
      call check('lvgroup', info)
      call pvmfgsize(name, info)
      call check('gsize', min(info, 0))
      end

      subroutine boxes(me)
      implicit none
      include 'fpvm3.h'
      integer me, info, buffer, index, number, count, entries
      integer indices(8), owners(8), flags(8)
      character*20 name
      print '(a)', 'boxes:'
      call pvmfinitsend(PVMRAW, buffer)
      number = 9
      call pvmfpack(INTEGER4, number, 1, 1, info)
      call pvmfputinfo('a box', buffer, PVMMBOXDEFAULT, index)
      call check('putinfo', index)
      call pvmfputinfo('a box   ', buffer, PVMMBOXDEFAULT, info)
      call check('putinfo', info)
      call pvmfrecvinfo('a box', index, PVMMBOXDEFAULT, info)
      call check('recvinfo', min(info, 1))
      call pvmfsetrbuf(info, info)
      number = 0
      call pvmfunpack(INTEGER4, number, 1, 1, info)
      call check('number', number)
      count = -1
      call pvmfgetmboxinfo('a box', name, count, entries, indices,
     &     owners, flags, info)
      print '(2x,3a)', 'name "', name, '"'
      call check('entries', entries)
      call check('index', indices(1))
      call check('owner', owners(1) - me)
      call pvmfdelinfo('a box', index, PVMMBOXDEFAULT, info)
      call check('delinfo', info)
      call pvmfrecvinfo('a box', index, PVMMBOXDEFAULT, info)
      call check('recvinfo', info)
      end

      subroutine contexts
      implicit none
      integer context, old, info
      print '(a)', 'contexts:'
      call pvmfgetcontext(old)
      call check('getcontext', old)
      call pvmfnewcontext(context)
      call check('newcontext', min(context, 1))
      call pvmfsetcontext(context, info)
      call check('setcontext', info - old)
      call pvmfsetcontext(old, info)
      call check('setcontext', info - context)
      call pvmffreecontext(context, info)
      call check('freecontext', info)
      end
