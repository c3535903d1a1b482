// Records of TensorBoard's event files: an 8-byte length, its masked CRC-32C, an Event message, its masked
// CRC-32C.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace cbk::tensorflow {

struct Scalar {
  std::string tag;
  float value;
};

/// The record that a file begins with. `wall_time`: seconds since 1970.
std::string first_event_record(double wall_time);

/// The scalars of a step.
std::string event_record(double wall_time, int64_t step, std::span<const Scalar> scalars);

}  // namespace cbk::tensorflow
