// What explain says about plans of a GPU.
#pragma once

#include <string>

#include "kernel_api/plan_data.h"

namespace rowmax::plan {

// "cuda, NVIDIA H200, sm90, 132 multiprocessors, ...".
std::string cuda_device_text(const DeviceInfo& device);

// What a step adds to its tiles and items: warpgroups, stages, waves, of grouped heads how many
// share a tile.
std::string cuda_step_text(const detail::PlanData& data, const detail::PlanStep& step);

// The line of the roofline: the time that each unit needs for the main step, and the prediction.
std::string cuda_roofline_text(const detail::PlanData& data);

}  // namespace rowmax::plan
