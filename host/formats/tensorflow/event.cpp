#include "host/formats/tensorflow/event.hpp"

#include "host/base/bytes.hpp"
#include "host/base/crc32c.hpp"
#include "host/formats/tensorflow/proto.hpp"

namespace cbk::tensorflow {
namespace {

void append_checksum(std::string& out, std::string_view of) {
  append_le(out, masked_crc32c(crc32c(as_bytes(of))));
}

std::string record(const proto::Event& event) {
  const std::string message = event.SerializeAsString();
  std::string out;
  append_le(out, static_cast<uint64_t>(message.size()));
  append_checksum(out, std::string(out));
  out += message;
  append_checksum(out, message);
  return out;
}

}  // namespace

std::string first_event_record(double wall_time) {
  proto::Event event;
  event.set_wall_time(wall_time);
  event.set_file_version("brain.Event:2");
  return record(event);
}

std::string event_record(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  proto::Event event;
  event.set_wall_time(wall_time);
  event.set_step(step);
  for (const Scalar& scalar : scalars) {
    proto::Summary::Value* const value = event.mutable_summary()->add_value();
    value->set_tag(scalar.tag);
    value->set_simple_value(scalar.value);
  }
  return record(event);
}

}  // namespace cbk::tensorflow
