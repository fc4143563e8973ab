// Log-log line charts as SVG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace rowmax::app {

struct PlotSeries {
  std::string label;
  std::vector<std::pair<double, double>>
      points;  // x ascending; the log axes leave out what is not positive
};

enum class AxisUnit { kSeconds, kBytes, kRate };

// One chart. The x axis has a tick at every x that occurs.
struct PlotPanel {
  std::string title;
  std::string x_label;
  AxisUnit unit = AxisUnit::kSeconds;
  std::vector<PlotSeries> series;  // at most 4
};

// The panels side by side under one title. A self-contained SVG document.
std::string render_svg(const std::string& title, const std::string& subtitle,
                       const std::vector<PlotPanel>& panels);

}  // namespace rowmax::app
