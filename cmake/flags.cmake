# Warnings and sanitizers for our own targets: link rowmax_flags privately.
add_library(rowmax_flags INTERFACE)
target_compile_options(rowmax_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -fno-math-errno>)
# GCC 12 reports "x" + std::string at -O3 as overlapping memcpy (GCC bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(rowmax_flags INTERFACE
    $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Wno-restrict>)
endif()
if(ROWMAX_WERROR)
  target_compile_options(rowmax_flags INTERFACE -Werror)
endif()
if(ROWMAX_SANITIZE)
  target_compile_options(rowmax_flags INTERFACE -fsanitize=${ROWMAX_SANITIZE} -fno-omit-frame-pointer -g)
  target_link_options(rowmax_flags INTERFACE -fsanitize=${ROWMAX_SANITIZE})
  if(ROWMAX_SANITIZE MATCHES "undefined")
    target_compile_options(rowmax_flags INTERFACE -fno-sanitize-recover=all)
  endif()
endif()
