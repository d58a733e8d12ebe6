# Builds PVM programs as tasks of `upcall pvm`:
#
#     find_package(upvm REQUIRED)
#     add_executable(prog prog.c)
#     target_link_libraries(prog PRIVATE upvm::pvm3)

get_filename_component(_upvm "${CMAKE_CURRENT_LIST_DIR}/../../upvm" ABSOLUTE)
set(_upvm_link
    -static-pie
    -Wl,-u,upvm_begin
    -Wl,-z,noseparate-code
    -Wl,-z,norelro
    -Wl,-u,upvm_pvm
    "-Wl,--version-script=${_upvm}/names.map")
if(NOT TARGET upvm::pvm3)
    add_library(upvm::pvm3 INTERFACE IMPORTED)
    set_target_properties(upvm::pvm3 PROPERTIES
        INTERFACE_COMPILE_OPTIONS "-fPIE"
        INTERFACE_INCLUDE_DIRECTORIES "${_upvm}/include"
        INTERFACE_LINK_OPTIONS "${_upvm_link}"
        INTERFACE_LINK_LIBRARIES "${_upvm}/runtime.o;${_upvm}/libpvm3.a;${_upvm}/libupvm.a;m")
endif()
unset(_upvm_link)
unset(_upvm)
