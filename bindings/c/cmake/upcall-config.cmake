# Builds programs in C or C++ that call, or are called, by Upcall:
#
#     find_package(upcall 0.2 REQUIRED)
#     upcall_add_interface(greeter greeter.wit)
#     add_executable(server server.c)
#     target_link_libraries(server PRIVATE greeter)
#
# `upcall_add_interface(NAME WIT [LONG_NAMES])` adds a static library NAME. Its source is what
# `upcall wit generate --lang c` writes from WIT, a file or a folder, when the program is built and
# again when WIT changes. Targets that link it find the generated header, which has the name of the
# WIT (greeter.h), and libupcall.
#
# Imported targets: upcall::upcall, the shared library, and upcall::static, for programs that run
# where libupcall is not installed. UPCALL_COMMAND is the path of the command `upcall`.

get_filename_component(_upcall_lib "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)

if(NOT TARGET upcall::upcall)
    set(_upcall_include "@INCLUDEDIR@")
    find_package(Threads REQUIRED)

    add_library(upcall::upcall SHARED IMPORTED)
    set_target_properties(upcall::upcall PROPERTIES
        IMPORTED_LOCATION "${_upcall_lib}/libupcall.so"
        IMPORTED_SONAME "libupcall.so.0"
        INTERFACE_INCLUDE_DIRECTORIES "${_upcall_include}")

    add_library(upcall::static STATIC IMPORTED)
    set_target_properties(upcall::static PROPERTIES
        IMPORTED_LOCATION "${_upcall_lib}/libupcall.a"
        INTERFACE_INCLUDE_DIRECTORIES "${_upcall_include}"
        INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;Threads::Threads;m;dl")
    unset(_upcall_include)
endif()

find_program(UPCALL_COMMAND upcall HINTS "@BINDIR@")

function(upcall_add_interface)
    set(form "the form is upcall_add_interface(NAME WIT [LONG_NAMES])")
    if(ARGC LESS 2)
        message(FATAL_ERROR "upcall_add_interface(${ARGN}): a name and a WIT file are expected; "
            "${form}")
    endif()
    set(name "${ARGV0}")
    set(wit "${ARGV1}")
    cmake_parse_arguments(PARSE_ARGV 2 arg "LONG_NAMES" "" "")
    if(arg_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "upcall_add_interface(${name} ${wit}): "
            "unknown arguments: ${arg_UNPARSED_ARGUMENTS}; ${form}")
    endif()
    if(TARGET ${name})
        message(FATAL_ERROR "upcall_add_interface(${name} ${wit}): there is a target ${name}; "
            "give the interface a name of its own")
    endif()
    if(NOT UPCALL_COMMAND)
        message(FATAL_ERROR "upcall_add_interface(${name} ${wit}): the command `upcall` was found "
            "neither in @BINDIR@ nor in PATH; install it, or set UPCALL_COMMAND to its path")
    endif()
    if(NOT EXISTS "${UPCALL_COMMAND}" OR IS_DIRECTORY "${UPCALL_COMMAND}")
        message(FATAL_ERROR "upcall_add_interface(${name} ${wit}): UPCALL_COMMAND is "
            "${UPCALL_COMMAND}, which is no program; set it to the path of the command `upcall`")
    endif()
    if(NOT CMAKE_C_COMPILER_LOADED)
        message(FATAL_ERROR "upcall_add_interface(${name} ${wit}): the generated code is C; "
            "add C to the languages of project()")
    endif()
    get_filename_component(source "${wit}" ABSOLUTE)
    if(NOT EXISTS "${source}")
        message(FATAL_ERROR "upcall_add_interface(${name} ${wit}): there is no ${source}")
    endif()
    if(IS_DIRECTORY "${source}")
        file(GLOB_RECURSE inputs CONFIGURE_DEPENDS "${source}/*.wit" "${source}/*.toml")
    else()
        # The limits beside an interface are a file of the same name.
        string(REGEX REPLACE "\\.wit$" ".toml" limits "${source}")
        file(GLOB limits CONFIGURE_DEPENDS "${limits}")
        set(inputs "${source}" ${limits})
    endif()
    set(options "")
    if(arg_LONG_NAMES)
        set(options --long-names)
    endif()
    get_filename_component(stem "${source}" NAME)
    string(REGEX REPLACE "\\.wit$" "" stem "${stem}")
    set(generated "${CMAKE_CURRENT_BINARY_DIR}/${name}.upcall")
    file(MAKE_DIRECTORY "${generated}")
    set(stubs "${generated}/${stem}.c")
    set(header "${generated}/${stem}.h")
    add_custom_command(
        OUTPUT "${stubs}" "${header}"
        COMMAND "${UPCALL_COMMAND}" wit generate "${source}" --lang c -o "${stubs}" ${options}
        DEPENDS ${inputs} "${UPCALL_COMMAND}"
        COMMENT "Generating ${stem}.h and ${stem}.c from ${wit}"
        VERBATIM)
    add_library(${name} STATIC "${stubs}" "${header}")
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${name} PUBLIC "${generated}")
    target_link_libraries(${name} PUBLIC upcall::upcall)
endfunction()

unset(_upcall_lib)
