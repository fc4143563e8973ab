#include "plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "table.h"

namespace rowmax::app {
namespace {

// Blue and orange first: they differ in lightness and for every common colour vision.
constexpr const char* kColors[] = {"#0b63b5", "#d9600a", "#3d8b37", "#7a4fa3"};
constexpr int kMaxSeries = 4;

// Pixels. A panel is its frame plus the margins around it.
constexpr double kFrameWidth = 400;
constexpr double kFrameHeight = 300;
constexpr double kMarginLeft = 84;
constexpr double kMarginRight = 20;
constexpr double kHeader = 86;
constexpr double kMarginTop = 44;
constexpr double kMarginBottom = 58;

struct LogAxis {
  double low = 1;
  double high = 10;
  double at(double value) const { return std::log(value / low) / std::log(high / low); }
};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  }
  return out;
}

std::string tick_text(double value, AxisUnit unit) {
  if (unit == AxisUnit::kBytes) {
    return bytes_text(value);
  }
  if (unit == AxisUnit::kRate) {
    return fmt::format("{:g}", value);
  }
  const double scaled = value < 0.9e-3 ? value * 1e6 : value < 0.9 ? value * 1e3 : value;
  return fmt::format("{:.3g} {}", scaled, value < 0.9e-3 ? "us" : value < 0.9 ? "ms" : "s");
}

const char* unit_label(AxisUnit unit) {
  return unit == AxisUnit::kSeconds ? "time" : unit == AxisUnit::kBytes ? "memory" : "GFLOP/s";
}

std::string length_text(double value) {
  return value >= 1024 && std::fmod(value, 1024) == 0 ? fmt::format("{:g}k", value / 1024)
                                                      : fmt::format("{:g}", value);
}

// Ticks are powers of a base: of 10 for time and rates (2 where those are few), of 4 for bytes
// (16 where those are many).
std::vector<double> ticks_of(double low, double high, AxisUnit unit) {
  constexpr size_t kFew = 3;
  constexpr size_t kMany = 9;
  std::vector<double> ticks;
  const double bases[] = {unit == AxisUnit::kBytes ? 4.0 : 10.0,
                          unit == AxisUnit::kBytes ? 16.0 : 2.0};
  for (const double base : bases) {
    std::vector<double> found;
    const int first = static_cast<int>(std::floor(std::log(low) / std::log(base) + 1e-9));
    const int last = static_cast<int>(std::ceil(std::log(high) / std::log(base) - 1e-9));
    for (int power = first; power <= last; ++power) {
      found.push_back(std::pow(base, power));
    }
    const bool better = found.size() >= kFew && found.size() <= kMany;
    if (ticks.empty() || better) {
      ticks = found;
    }
    if (better) {
      break;
    }
  }
  return ticks;
}

std::string marker(size_t series, double x, double y) {
  const char* color = kColors[series % kMaxSeries];
  if (series % 2 == 0) {
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", x, y, color);
  }
  return fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"8\" height=\"8\" fill=\"{}\"/>\n",
                     x - 4, y - 4, color);
}

std::string text_at(double x, double y, const char* attributes, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", x, y, attributes,
                     escaped(text));
}

// Axes, grid and labels of one panel whose frame has its top left corner at (left, top).
std::string draw_frame(const PlotPanel& panel, const std::set<double>& xs,
                       const std::vector<double>& ticks, const LogAxis& x_axis,
                       const LogAxis& y_axis, double left, double top) {
  std::string out = text_at(left, top - 32, "class=\"panel\"", panel.title);
  for (const double tick : ticks) {
    const double y = top + kFrameHeight * (1 - y_axis.at(tick));
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>\n",
        left, left + kFrameWidth, y);
    out +=
        text_at(left - 8, y + 4, "class=\"tick\" text-anchor=\"end\"", tick_text(tick, panel.unit));
  }
  for (const double value : xs) {
    const double x = left + kFrameWidth * x_axis.at(value);
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" class=\"grid\"/>\n", x,
        top, top + kFrameHeight);
    out += text_at(x, top + kFrameHeight + 18, "class=\"tick\" text-anchor=\"middle\"",
                   length_text(value));
  }
  out += fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" class=\"frame\"/>\n",
      left, top, kFrameWidth, kFrameHeight);
  out += text_at(left + kFrameWidth / 2, top + kFrameHeight + 42,
                 "class=\"axis\" text-anchor=\"middle\"", panel.x_label);
  const double middle = top + kFrameHeight / 2;
  out += fmt::format(
      "<text x=\"{0:.1f}\" y=\"{1:.1f}\" class=\"axis\" text-anchor=\"middle\" "
      "transform=\"rotate(-90 {0:.1f} {1:.1f})\">{2}</text>\n",
      left - 66, middle, unit_label(panel.unit));
  return out;
}

// One row between the title and the frame: there it can hide no data.
std::string draw_legend(const PlotPanel& panel, double left, double top) {
  constexpr double kGlyphWidth = 6.6;
  std::string out;
  double x = left;
  const double y = top - 14;
  for (size_t i = 0; i < panel.series.size(); ++i) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{2:.1f}\" x2=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" "
        "stroke-width=\"2.2\"/>\n",
        x, x + 26, y, kColors[i % kMaxSeries]);
    out += marker(i, x + 13, y);
    out += text_at(x + 33, y + 4, "class=\"tick\"", panel.series[i].label);
    x += 55 + kGlyphWidth * static_cast<double>(panel.series[i].label.size());
  }
  return out;
}

// Logarithmic axes have no place for anything else.
bool has_place(double x, double y) {
  return std::isfinite(x) && std::isfinite(y) && x > 0.0 && y > 0.0;
}

PlotPanel with_places_only(PlotPanel panel) {
  for (PlotSeries& series : panel.series) {
    std::erase_if(series.points,
                  [](const auto& point) { return !has_place(point.first, point.second); });
  }
  return panel;
}

// Only points that have a place.
std::string draw_panel(const PlotPanel& panel, double left, double top) {
  std::set<double> xs;
  double low = 0;
  double high = 0;
  for (const PlotSeries& series : panel.series) {
    for (const auto& [x, y] : series.points) {
      xs.insert(x);
      low = low == 0 ? y : std::min(low, y);
      high = std::max(high, y);
    }
  }
  if (xs.empty()) {
    return "";
  }
  const std::vector<double> ticks = ticks_of(low, high, panel.unit);
  // A little air left and right of the outermost points.
  const LogAxis x_axis{*xs.begin() / 1.15, *xs.rbegin() * 1.15};
  // A narrow range still needs two distinct ends.
  const LogAxis y_axis{ticks.front(), std::max(ticks.back(), ticks.front() * 2)};
  std::string out = draw_frame(panel, xs, ticks, x_axis, y_axis, left, top);
  for (size_t i = 0; i < panel.series.size(); ++i) {
    std::string points;
    std::string markers;
    for (const auto& [x_value, y_value] : panel.series[i].points) {
      const double x = left + kFrameWidth * x_axis.at(x_value);
      const double y = top + kFrameHeight * (1 - y_axis.at(y_value));
      points += fmt::format("{:.1f},{:.1f} ", x, y);
      markers += marker(i, x, y);
    }
    out +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.2\"/>\n",
                    points, kColors[i % kMaxSeries]);
    out += markers;
  }
  return out + draw_legend(panel, left, top);
}

}  // namespace

std::string render_svg(const std::string& title, const std::string& subtitle,
                       const std::vector<PlotPanel>& panels) {
  const double panel_width = kMarginLeft + kFrameWidth + kMarginRight;
  const double width = panel_width * static_cast<double>(panels.size());
  const double height = kHeader + kMarginTop + kFrameHeight + kMarginBottom;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"DejaVu Sans, Helvetica, Arial, "
      "sans-serif\">\n",
      width, height);
  out +=
      "<style>.title{font-size:18px;font-weight:bold;fill:#1a1a1a}"
      ".subtitle{font-size:12px;fill:#555}.panel{font-size:14px;font-weight:bold;fill:#1a1a1a}"
      ".axis{font-size:12px;fill:#333}.tick{font-size:11px;fill:#333}"
      ".grid{stroke:#e3e3e3;stroke-width:1}.frame{fill:none;stroke:#888;stroke-width:1}"
      "</style>\n";
  out += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#fff\"/>\n", width, height);
  out += text_at(20, 34, "class=\"title\"", title);
  out += text_at(20, 56, "class=\"subtitle\"", subtitle);
  for (size_t i = 0; i < panels.size(); ++i) {
    out += draw_panel(with_places_only(panels[i]),
                      panel_width * static_cast<double>(i) + kMarginLeft, kHeader + kMarginTop);
  }
  return out + "</svg>\n";
}

}  // namespace rowmax::app
