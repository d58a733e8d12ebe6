# Before 1.0 the second number of a version changes with the interface: 0.2.1 will do for 0.2, and
# neither 0.1 nor 0.3 will.

set(PACKAGE_VERSION "@VERSION@")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _upcall_own "${PACKAGE_VERSION}")
string(REGEX MATCH "^[0-9]+\\.[0-9]+" _upcall_asked "${PACKAGE_FIND_VERSION}")
if(PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION
    OR (_upcall_asked AND NOT _upcall_asked STREQUAL _upcall_own))
    set(PACKAGE_VERSION_COMPATIBLE FALSE)
else()
    set(PACKAGE_VERSION_COMPATIBLE TRUE)
    if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)
        set(PACKAGE_VERSION_EXACT TRUE)
    endif()
endif()
if(CMAKE_SIZEOF_VOID_P AND NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
    set(PACKAGE_VERSION "${PACKAGE_VERSION} (64 bits)")
    set(PACKAGE_VERSION_UNSUITABLE TRUE)
endif()
