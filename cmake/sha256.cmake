# SHA-256 as one object file of 24 KB, taken out of libcrypto's static archive under names of our own: a program
# that links flexc needs no libcrypto, and one that has its own, of any version, never meets ours.
find_path(FLEXC_OPENSSL_INCLUDE openssl/sha.h)
find_library(FLEXC_LIBCRYPTO NAMES libcrypto.a)
if(NOT FLEXC_OPENSSL_INCLUDE OR NOT FLEXC_LIBCRYPTO)
  message(FATAL_ERROR "flexc needs OpenSSL's headers and its static library libcrypto.a when it is built: install "
    "libssl-dev, or set FLEXC_OPENSSL_INCLUDE and FLEXC_LIBCRYPTO")
endif()

set(FLEXC_SHA256_OBJECT ${flexc_BINARY_DIR}/generated/sha256.o)
set(undefined)
set(names)
foreach(function Init Update Final)
  list(APPEND undefined -u SHA256_${function})
  list(APPEND names --redefine-sym SHA256_${function}=flexc_SHA256_${function}
    --keep-global-symbol=flexc_SHA256_${function})
endforeach()
# -d gives common symbols a place, so that these can be local too.
add_custom_command(OUTPUT ${FLEXC_SHA256_OBJECT}
  COMMAND ${CMAKE_COMMAND} -E make_directory ${flexc_BINARY_DIR}/generated
  COMMAND ${CMAKE_LINKER} -r -d ${undefined} -o ${FLEXC_SHA256_OBJECT}.all ${FLEXC_LIBCRYPTO}
  COMMAND ${CMAKE_OBJCOPY} ${names} ${FLEXC_SHA256_OBJECT}.all ${FLEXC_SHA256_OBJECT}
  DEPENDS ${FLEXC_LIBCRYPTO} VERBATIM)
add_custom_target(flexc_sha256_object DEPENDS ${FLEXC_SHA256_OBJECT})

add_library(flexc_sha256 INTERFACE)
target_include_directories(flexc_sha256 SYSTEM INTERFACE ${FLEXC_OPENSSL_INCLUDE})
target_link_libraries(flexc_sha256 INTERFACE ${FLEXC_SHA256_OBJECT})
add_dependencies(flexc_sha256 flexc_sha256_object)
