// Plain text tables and numbers for people.
#pragma once

#include <string>
#include <vector>

namespace rowmax::app {

// Columns are padded to their widest cell; a column is left-aligned when its header starts with
// '<' (which is not printed), else right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> header);
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<bool> left_;
  std::vector<std::vector<std::string>> rows_;  // the first is the header
};

// "850 us", "1.23 ms", "4.56 s".
std::string time_text(double seconds);
// "640 B", "1.5 KiB", "64 MiB".
std::string bytes_text(double bytes);
// "1 thread", "2 threads".
std::string threads_text(int threads);
// Three significant digits, "inf" and "nan" by name.
std::string number_text(double value);

}  // namespace rowmax::app
