// What a Plan holds. Plain data: backends read it, the planner writes it.
#pragma once

#include <string>
#include <vector>

#include "kernel_api/kernel.h"

namespace rowmax::detail {

struct PlanStep {
  const KernelEntry* kernel = nullptr;
  Schedule schedule;
  size_t thread_bytes = 0;
};

struct DeclinedKernel {
  std::string name;
  std::string reason;
  bool serves = false;    // it would, but another kernel goes before it
  bool contends = false;  // on a GPU: its predicted time may have been as short
};

struct PlanData {
  AttentionProblem problem;
  DeviceInfo device;
  std::string backend;
  std::vector<PlanStep> steps;  // in execution order; the main step first of its kind
  size_t main_step = 0;         // index of the step whose kernel names the plan
  std::string kernel_name;      // of the main step
  size_t region_offset[kRegionCount] = {};
  size_t region_size[kRegionCount] = {};
  size_t shared_bytes = 0;   // all regions, each aligned to 64
  size_t thread_stride = 0;  // scratch of one worker: the largest of the steps, aligned to 64
  std::vector<DeclinedKernel> declined;
  std::string choice;           // one line: why the main kernel won
  double predicted_us = 0.0;    // GPU plans: the cost model's time, times ranking_factor
  double ranking_factor = 1.0;  // GPU plans: of the ranking table
};

}  // namespace rowmax::detail
