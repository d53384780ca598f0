cmake_minimum_required(VERSION 3.25)

# Runs a command, fails with its output, and leaves the output in `out`.
macro(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE err)
  if(NOT result EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${result}\n${out}\n${err}")
  endif()
endmacro()

macro(expect text)
  if(NOT out MATCHES "${text}")
    message(FATAL_ERROR "expected '${text}' in\n${out}")
  endif()
endmacro()

# Moved after the installation: nothing may depend on where it was put first.
file(REMOVE_RECURSE ${WORK}/first ${WORK}/moved ${WORK}/builds)
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
file(RENAME ${WORK}/first ${WORK}/moved)
set(prefix ${WORK}/moved)

file(GLOB_RECURSE configs ${prefix}/*.cmake)
if(NOT configs)
  message(FATAL_ERROR "no CMake package was installed")
endif()
foreach(config ${configs})
  file(READ ${config} text)
  foreach(private spdlog fmt:: LLVM flexc_flags ${BUILD})
    string(FIND "${text}" "${private}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${config} speaks of ${private}, which users do not have")
    endif()
  endforeach()
endforeach()

set(sanitize "")
if(SANITIZE)
  set(sanitize "-fsanitize=${SANITIZE}")
endif()

# Each header stands alone and may be included twice, with the standard library only.
file(GLOB headers RELATIVE ${prefix}/include ${prefix}/include/flexc/*.h)
foreach(header ${headers})
  file(WRITE ${WORK}/builds/header.cpp "#include \"${header}\"\n#include \"${header}\"\n")
  run(${CXX_COMPILER} -std=c++20 -Wall -Wextra -Wpedantic -Werror -I${prefix}/include -fsyntax-only
    ${WORK}/builds/header.cpp)
endforeach()
foreach(standard c99 c11)
  foreach(header flexc_c.h flexc_distributed_c.h)
    file(WRITE ${WORK}/builds/header.c "#include \"flexc/${header}\"\n#include \"flexc/${header}\"\n"
      "int main(void) { return 0; }\n")
    run(${C_COMPILER} -std=${standard} -Wall -Wextra -Wpedantic -Werror -I${prefix}/include
      -fsyntax-only ${WORK}/builds/header.c)
  endforeach()
endforeach()

foreach(language cxx c)
  set(build ${WORK}/builds/${language})
  run(${CMAKE_COMMAND} -G Ninja -S ${CMAKE_CURRENT_LIST_DIR}/${language} -B ${build} -DCMAKE_BUILD_TYPE=Release
    -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_C_COMPILER=${C_COMPILER}
    -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_C_FLAGS=${sanitize} -DCMAKE_CXX_FLAGS=${sanitize}
    -DCMAKE_EXE_LINKER_FLAGS=${sanitize} -DFLEXC_EXPECTED_VERSION=${VERSION})
  run(${CMAKE_COMMAND} --build ${build})
  run(${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND FLEXC_CACHE_DIR=${WORK}/builds/cache
    ${build}/consumer ${CPU})
  expect("flexc ${VERSION}")
  expect("buffer slopes")
  expect("did you mean 'kv_idx'")
  if(CPU)
    expect("attention 2.5")
  endif()
endforeach()
if(CPU)
  run(${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND FLEXC_CACHE_DIR=${WORK}/builds/cache
    ${WORK}/builds/cxx/readme)
  expect("readme ends well")
  run(${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND FLEXC_CACHE_DIR=${WORK}/builds/cache ${WORK}/builds/cxx/ranks)
  expect("ranks end well")
  foreach(language cxx c)
    run(${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND FLEXC_CACHE_DIR=${WORK}/builds/cache
      ${WORK}/builds/${language}/serving)
    expect("serving ends well")
  endforeach()
endif()

# Ranks in C, where there is an MPI; by mpirun, and by itself.
set(ranks_in_c "")
file(GLOB_RECURSE mpi_backend ${prefix}/*/libflexc_mpi.so)
if(CPU AND MPIRUN AND mpi_backend)
  set(ranks_in_c ${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND --unset=FLEXC_MPI_BACKEND
    FLEXC_CACHE_DIR=${WORK}/builds/cache FLEXC_THREADS=1 OMPI_MCA_mpi_yield_when_idle=1
    ${MPIRUN} --oversubscribe --allow-run-as-root -n)
  run(${ranks_in_c} 1 ${WORK}/builds/c/ranks)
  expect("rank 0 received 0 bytes")
  string(REGEX MATCH "d_slopes: [^;]+;" alone "${out}")
  run(${ranks_in_c} 3 ${WORK}/builds/c/ranks)
  expect("received [1-9][0-9]+ bytes")
  expect("${alone}")
endif()

# Without CMake, in C, which needs to be told of C++'s library.
find_program(PKG_CONFIG NAMES pkg-config pkgconf)
file(GLOB_RECURSE package ${prefix}/*/flexc.pc)
get_filename_component(package_folder "${package}" DIRECTORY)
if(PKG_CONFIG AND NOT SANITIZE)
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${package_folder} ${PKG_CONFIG} --cflags --libs "flexc = ${VERSION}")
  string(STRIP "${out}" flags)
  separate_arguments(flags NATIVE_COMMAND "${flags}")
  run(${C_COMPILER} -std=c99 ${CMAKE_CURRENT_LIST_DIR}/c/main.c -o ${WORK}/builds/by_pkg_config ${flags})
  run(${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND FLEXC_CACHE_DIR=${WORK}/builds/cache
    ${WORK}/builds/by_pkg_config ${CPU})
  expect("flexc ${VERSION}")
  if(CPU)
    expect("attention 2.5")
  endif()
  run(${CMAKE_COMMAND} -E env PKG_CONFIG_PATH=${package_folder} ${PKG_CONFIG} --cflags --libs
    "flexc_distributed = ${VERSION}")
  string(STRIP "${out}" distributed_flags)
  separate_arguments(distributed_flags NATIVE_COMMAND "${distributed_flags}")
  run(${C_COMPILER} -std=c99 ${WORK}/builds/c/ranks.c -o ${WORK}/builds/ranks_by_pkg_config ${distributed_flags})
  if(ranks_in_c)
    run(${ranks_in_c} 2 ${WORK}/builds/ranks_by_pkg_config)
    expect("${alone}")
  endif()
  run(${C_COMPILER} -std=c99 -shared -fPIC ${CMAKE_CURRENT_LIST_DIR}/plugin/plugin.c
    -o ${WORK}/builds/plugin.so ${flags})
  run(nm -D --defined-only ${WORK}/builds/plugin.so)
  string(REGEX REPLACE "[0-9a-f]+ [A-Za-z] " "" shown "${out}")
  string(STRIP "${shown}" shown)
  if(NOT shown STREQUAL "plugin_version")
    message(FATAL_ERROR "a library that links flexc shows more than its own function:\n${shown}")
  endif()
endif()

if(CLI)
  run(${prefix}/bin/flexc check -e "score * 2")
  if(CPU)
    run(${CMAKE_COMMAND} -E env --unset=FLEXC_CPU_BACKEND ${prefix}/bin/flexc doctor)
    expect("found +CPU backend")
  endif()
endif()
