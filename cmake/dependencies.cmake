# Third-party packages: Debian's -dev packages first, FetchContent only where they are missing.
include(FetchContent)

find_package(OpenMP REQUIRED COMPONENTS CXX)

function(rowmax_dependency package target url)
  find_package(${package} QUIET)
  if(NOT TARGET ${target})
    message(STATUS "${package}: not installed, fetching ${url}")
    FetchContent_Declare(${package} URL ${url})
    FetchContent_MakeAvailable(${package})
  endif()
endfunction()

rowmax_dependency(fmt fmt::fmt-header-only
  https://github.com/fmtlib/fmt/releases/download/9.1.0/fmt-9.1.0.zip)
if(ROWMAX_BUILD_APPS OR ROWMAX_BUILD_TESTS)
  rowmax_dependency(nlohmann_json nlohmann_json::nlohmann_json
    https://github.com/nlohmann/json/releases/download/v3.11.2/json.tar.xz)
endif()
if(ROWMAX_BUILD_APPS)
  rowmax_dependency(CLI11 CLI11::CLI11
    https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.1.2.tar.gz)
endif()
if(ROWMAX_BUILD_TESTS)
  rowmax_dependency(GTest GTest::gtest
    https://github.com/google/googletest/archive/refs/tags/release-1.12.1.tar.gz)
endif()
if(ROWMAX_BUILD_BENCH)
  rowmax_dependency(benchmark benchmark::benchmark
    https://github.com/google/benchmark/archive/refs/tags/v1.7.1.tar.gz)
endif()
