// The library's own way to run workers when the caller brings no executor.
#pragma once

namespace rowmax {

// Runs fn(arg, w) exactly once for every w in [0, workers) and returns when all have returned.
// OpenMP threads, or plain ones in a process that was forked after the library was loaded: the
// OpenMP runtime's pool does not survive a fork and would wait for it forever.
void run_workers(int workers, void (*fn)(void* arg, int worker), void* arg);

}  // namespace rowmax
