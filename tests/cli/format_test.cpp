// Tables, numbers and plots.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "plot.h"
#include "table.h"

namespace rowmax::app {
namespace {

TEST(Table, AlignsColumns) {
  Table table({"<name", "value"});
  table.add({"a", "1"});
  table.add({"longer", "12345678"});
  EXPECT_EQ(table.text(),
            "name       value\n"
            "------  --------\n"
            "a              1\n"
            "longer  12345678\n");
}

TEST(Numbers, HaveThreeDigitsAndAUnit) {
  EXPECT_EQ(time_text(0.00000123), "1.23 us");
  EXPECT_EQ(time_text(0.0123), "12.3 ms");
  EXPECT_EQ(time_text(2.5), "2.50 s");
  EXPECT_EQ(time_text(123.4), "123 s");
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(64.0 * 1024 * 1024), "64 MiB");
}

TEST(Plot, DrawsEverySeriesAndEscapesText) {
  const std::string svg =
      render_svg("a < b & c", "",
                 {{"panel",
                   "x",
                   AxisUnit::kSeconds,
                   {{"one", {{512, 1e-3}, {1024, 4e-3}}}, {"two", {{512, 1e-2}}}}}});
  EXPECT_NE(svg.find("a &lt; b &amp; c"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos;
       at = svg.find("<polyline", at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 2u);
  EXPECT_NE(svg.find(">512<"), std::string::npos);
  EXPECT_NE(svg.find(">1k<"), std::string::npos);
}

TEST(Plot, SurvivesASinglePointAndNone) {
  EXPECT_EQ(
      render_svg("t", "", {{"p", "x", AxisUnit::kBytes, {{"one", {{512, 1024}}}}}}).find("nan"),
      std::string::npos);
  EXPECT_NE(render_svg("t", "", {{"p", "x", AxisUnit::kBytes, {}}}).find("</svg>"),
            std::string::npos);
}

// Log axes have no place for 0, negative values, NaN and infinities.
TEST(Plot, LeavesOutWhatHasNoPlace) {
  const double infinity = std::numeric_limits<double>::infinity();
  const PlotPanel good{"p", "x", AxisUnit::kSeconds, {{"one", {{512, 1e-3}, {1024, 2e-3}}}}};
  PlotPanel spoiled = good;
  auto& points = spoiled.series[0].points;
  for (const auto& point : {std::pair(0.0, 1.0), std::pair(-1.0, 1.0), std::pair(64.0, 0.0),
                            std::pair(64.0, std::nan("")), std::pair(infinity, 1.0)}) {
    points.push_back(point);
  }
  EXPECT_EQ(render_svg("t", "", {spoiled}), render_svg("t", "", {good}));
}

}  // namespace
}  // namespace rowmax::app
