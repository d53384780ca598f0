# flexc_embed(OUT_VAR SYMBOL FOLDER PATTERNS): text files under FOLDER become one generated .cpp with
#   std::span<const EmbeddedFile> SYMBOL();   (src/support/embedded.h), sorted by path.
function(flexc_embed out_var symbol folder patterns)
  set(globs)
  foreach(pattern ${patterns})
    list(APPEND globs ${flexc_SOURCE_DIR}/${folder}/${pattern})
  endforeach()
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${flexc_SOURCE_DIR}/${folder} ${globs})
  list(SORT files)
  string(REPLACE "::" "_" stem ${symbol})
  set(output ${flexc_BINARY_DIR}/generated/${stem}.cpp)
  set(dependencies)
  foreach(file ${files})
    list(APPEND dependencies ${flexc_SOURCE_DIR}/${folder}/${file})
  endforeach()
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DOUTPUT=${output} -DSYMBOL=${symbol} -DFOLDER=${flexc_SOURCE_DIR}/${folder}
            "-DFILES=${files}" -P ${flexc_SOURCE_DIR}/cmake/write_embedded.cmake
    DEPENDS ${dependencies} ${flexc_SOURCE_DIR}/cmake/write_embedded.cmake VERBATIM)
  set(${out_var} ${output} PARENT_SCOPE)
endfunction()
