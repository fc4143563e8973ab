// Roles of a kernel as coroutines: models of barriers run on the CPU in random interleavings.
#pragma once

#include <algorithm>
#include <coroutine>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace rowmax::test {

// A role of the kernel: resumed while others run, suspended where it would wait.
struct Role {
  struct promise_type {
    Role get_return_object() {
      return Role{std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { throw; }
  };
  explicit Role(std::coroutine_handle<promise_type> role) : handle(role) {}
  Role(Role&& other) noexcept : handle(std::exchange(other.handle, {})) {}
  Role(const Role&) = delete;
  Role& operator=(Role&&) = delete;
  ~Role() {
    if (handle) {
      handle.destroy();
    }
  }
  std::coroutine_handle<promise_type> handle;
};

// Resumes all roles in random orders until all are done, or none has moved `events` for a while.
inline bool run_roles(std::vector<Role>& roles, const int64_t& events, std::mt19937& random) {
  std::vector<size_t> order(roles.size());
  for (size_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  for (int idle = 0; idle < 4;) {
    std::shuffle(order.begin(), order.end(), random);
    const int64_t before = events;
    bool all_done = true;
    for (const size_t i : order) {
      if (!roles[i].handle.done()) {
        roles[i].handle.resume();
        all_done = false;
      }
    }
    if (all_done) {
      return true;
    }
    idle = events == before ? idle + 1 : 0;
  }
  return false;
}

}  // namespace rowmax::test
