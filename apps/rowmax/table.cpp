#include "table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace rowmax::app {
namespace {

// Three significant digits without an exponent, for values in [0, 10000).
std::string three_digits(double value) {
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}", value, decimals);
}

// Columns that a terminal uses for UTF-8 text without wide or combining characters.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Table::Table(std::vector<std::string> header) {
  for (std::string& cell : header) {
    left_.push_back(!cell.empty() && cell[0] == '<');
    if (left_.back()) {
      cell.erase(0, 1);
    }
  }
  rows_.push_back(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  row.resize(left_.size());
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<size_t> widths(left_.size(), 0);
  for (const std::vector<std::string>& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) {
      widths[c] = std::max(widths[c], width_of(row[c]));
    }
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < widths.size(); ++c) {
      const std::string padding(widths[c] - width_of(rows_[r][c]), ' ');
      line += c > 0 ? "  " : "";
      line += left_[c] ? rows_[r][c] + padding : padding + rows_[r][c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r == 0) {
      for (size_t c = 0; c < widths.size(); ++c) {
        out += (c > 0 ? "  " : "") + std::string(widths[c], '-');
      }
      out += "\n";
    }
  }
  return out;
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) {
    return three_digits(seconds * 1e6) + " us";
  }
  return seconds < 1.0 ? three_digits(seconds * 1e3) + " ms" : three_digits(seconds) + " s";
}

std::string bytes_text(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024.0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024.0;
    ++unit;
  }
  return bytes == std::floor(bytes) ? fmt::format("{:.0f} {}", bytes, kUnits[unit])
                                    : fmt::format("{} {}", three_digits(bytes), kUnits[unit]);
}

std::string threads_text(int threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

std::string number_text(double value) { return fmt::format("{:.3g}", value); }

}  // namespace rowmax::app
