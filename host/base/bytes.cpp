#include "host/base/bytes.hpp"

#include <array>
#include <cctype>
#include <charconv>

namespace cbk {

uint64_t parse_size(std::string_view text) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit;
  for (const char* c = end; c != text.data() + text.size(); ++c) {
    if (*c != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*c)));
  }
  struct Unit {
    std::string_view name;
    uint64_t factor;
  };
  constexpr uint64_t ki = 1024;
  constexpr uint64_t k = 1000;
  constexpr std::array<Unit, 14> units = {{{"", 1},
                                           {"b", 1},
                                           {"kb", k},
                                           {"mb", k * k},
                                           {"gb", k * k * k},
                                           {"tb", k * k * k * k},
                                           {"kib", ki},
                                           {"mib", ki * ki},
                                           {"gib", ki * ki * ki},
                                           {"tib", ki * ki * ki * ki},
                                           {"k", ki},
                                           {"m", ki * ki},
                                           {"g", ki * ki * ki},
                                           {"t", ki * ki * ki * ki}}};
  for (const Unit& candidate : units) {
    if (error == std::errc{} && candidate.name == unit)
      return checked_mul(number, candidate.factor, "the size");
  }
  fail(Errc::usage, "{} is not a size; write a whole number and a unit, such as 10GB or 512MiB", quote(text));
}

std::string format_size(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, units.at(unit));
}

}  // namespace cbk
