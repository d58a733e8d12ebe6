/* Prints all constants that Debian's PVM header has: a line for each, the same under any PVM. */
#include <stdio.h>
#include "pvm3.h"

#define INT(name) printf("%s = %ld\n", #name, (long)(name));
#define TEXT(name) printf("%s = %s\n", #name, name);

int main(void)
{
    INT(PVMTMPNAMLEN) INT(PVM_BYTE) INT(PVM_CPLX) INT(PVM_DCPLX) INT(PVM_DOUBLE) INT(PVM_FLOAT)
    INT(PVM_INT) INT(PVM_LONG) INT(PVM_MAJOR_VERSION) INT(PVM_MINOR_VERSION) INT(PVM_PATCH_VERSION)
    INT(PVM_SHORT) INT(PVM_STR) INT(PVM_UINT) INT(PVM_ULONG) INT(PVM_USHORT) INT(PvmAllowDirect)
    INT(PvmAlready) INT(PvmAutoErr) INT(PvmBadMsg) INT(PvmBadParam) INT(PvmBadVersion)
    INT(PvmBaseContext) INT(PvmCantStart) INT(PvmDSysErr) INT(PvmDataDefault) INT(PvmDataFoo)
    INT(PvmDataInPlace) INT(PvmDataRaw) INT(PvmDataTrace) INT(PvmDebugMask) INT(PvmDenied)
    INT(PvmDontRoute) INT(PvmDupEntry) INT(PvmDupGroup) INT(PvmDupHost) INT(PvmExists)
    INT(PvmFragSize) INT(PvmHostAdd) INT(PvmHostCompl) INT(PvmHostDelete) INT(PvmHostFail)
    INT(PvmHostrNMstr) INT(PvmIPLoopback) INT(PvmMboxDefault) INT(PvmMboxDirectIndexShift)
    INT(PvmMboxFirstAvail) INT(PvmMboxMaxDirectIndex) INT(PvmMboxMaxFlag) INT(PvmMboxMultiInstance)
    INT(PvmMboxOverWritable) INT(PvmMboxPersistent) INT(PvmMboxReadAndDelete)
    INT(PvmMboxWaitForInfo) INT(PvmMismatch) INT(PvmMppFront) INT(PvmNoBuf) INT(PvmNoData)
    INT(PvmNoEntry) INT(PvmNoFile) INT(PvmNoGroup) INT(PvmNoHost) INT(PvmNoInst) INT(PvmNoMem)
    INT(PvmNoParent) INT(PvmNoReset) INT(PvmNoSpawnParent) INT(PvmNoSuchBuf) INT(PvmNoTask)
    INT(PvmNotFound) INT(PvmNotImpl) INT(PvmNotInGroup) INT(PvmNotifyCancel) INT(PvmNullGroup)
    INT(PvmOk) INT(PvmOutOfRes) INT(PvmOutputCode) INT(PvmOutputContext) INT(PvmOutputTid)
    INT(PvmOverflow) INT(PvmParentNotSet) INT(PvmPollConstant) INT(PvmPollSleep) INT(PvmPollTime)
    INT(PvmPollType) INT(PvmResvTids) INT(PvmRoute) INT(PvmRouteAdd) INT(PvmRouteDelete)
    INT(PvmRouteDirect) INT(PvmSelfOutputCode) INT(PvmSelfOutputContext) INT(PvmSelfOutputTid)
    INT(PvmSelfTraceBuffer) INT(PvmSelfTraceCode) INT(PvmSelfTraceContext) INT(PvmSelfTraceOptions)
    INT(PvmSelfTraceTid) INT(PvmShowTids) INT(PvmSysErr) INT(PvmTaskArch) INT(PvmTaskChild)
    INT(PvmTaskDebug) INT(PvmTaskDefault) INT(PvmTaskExit) INT(PvmTaskHost) INT(PvmTaskSelf)
    INT(PvmTaskTrace) INT(PvmTraceBuffer) INT(PvmTraceCode) INT(PvmTraceContext) INT(PvmTraceCount)
    INT(PvmTraceFull) INT(PvmTraceOptions) INT(PvmTraceTid) INT(PvmTraceTime)
    TEXT(PVMHOSTERCLASS) TEXT(PVMNORESETCLASS) TEXT(PVMRMCLASS) TEXT(PVMTASKERCLASS)
    TEXT(PVMTRACERCLASS) TEXT(PVM_VER)
    printf("indices: %d %d\n", (int)PvmMboxDirectIndex(7),
           (int)PvmMboxDirectIndexOf(PvmMboxDirectIndex(7) | 3));
    pvm_exit();
    return 0;
}
