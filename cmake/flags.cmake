# Warnings and sanitizers for our own targets: link rowmax_flags privately.
add_library(rowmax_flags INTERFACE)
target_compile_options(rowmax_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers -fno-math-errno>)
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
