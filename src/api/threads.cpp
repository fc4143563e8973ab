#include "api/threads.h"

#include <omp.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace rowmax {
namespace {

// Recorded at load time: the caller's own OpenMP regions may have started the pool before our first
// one, so "first use" would be too late.
const pid_t kLoadPid = getpid();

// Set by the build for the thread sanitizer, which cannot see how the OpenMP runtime synchronises.
constexpr bool kPlainThreads = ROWMAX_PLAIN_THREADS;

void run_openmp(int workers, void (*fn)(void* arg, int worker), void* arg) {
#pragma omp parallel num_threads(workers)
  {
    // The runtime may deliver fewer threads than asked (nested regions, limits).
    const int threads = omp_get_num_threads();
    for (int worker = omp_get_thread_num(); worker < workers; worker += threads) {
      fn(arg, worker);
    }
  }
}

void run_plain_threads(int workers, void (*fn)(void* arg, int worker), void* arg) {
  std::atomic<int> next{0};
  const auto take = [&] {
    for (int worker = next.fetch_add(1); worker < workers; worker = next.fetch_add(1)) {
      fn(arg, worker);
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(static_cast<size_t>(workers) - 1);
    for (int i = 1; i < workers; ++i) {
      threads.emplace_back(take);
    }
  } catch (const std::system_error&) {
    // No more threads to be had: those that started, and this one, take all workers.
  } catch (const std::bad_alloc&) {
    // The same.
  }
  take();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace

void run_workers(int workers, void (*fn)(void* arg, int worker), void* arg) {
  if (workers == 1) {
    fn(arg, 0);
  } else if (!kPlainThreads && getpid() == kLoadPid) {
    run_openmp(workers, fn, arg);
  } else {
    run_plain_threads(workers, fn, arg);
  }
}

}  // namespace rowmax
