// Version of the headers. The version of the loaded library is rowmax_version() of c_api.h.
#pragma once

#define ROWMAX_VERSION_MAJOR 0
#define ROWMAX_VERSION_MINOR 1
#define ROWMAX_VERSION_PATCH 0
#define ROWMAX_VERSION_STRING "0.1.0"
