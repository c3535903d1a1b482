#include "host/base/inflate.hpp"

#include <zlib.h>

#include <algorithm>
#include <new>

namespace cbk {

struct InflateStream::State {
  z_stream stream{};
  bool is_at_end = false;
};

void InflateStream::Free::operator()(State* state) const {
  inflateEnd(&state->stream);
  delete state;
}

InflateStream::InflateStream(ByteView packed, Deflated form) : state_(new State), rest_(packed) {
  constexpr int window_bits = 15;
  if (inflateInit2(&state_->stream, form == Deflated::raw ? -window_bits : window_bits) != Z_OK)
    throw std::bad_alloc();
}

size_t InflateStream::read(std::span<std::byte> out) {
  constexpr size_t most = size_t{1} << 30;  // zlib counts in 32 bits
  z_stream& stream = state_->stream;
  size_t done = 0;
  while (done < out.size() && !state_->is_at_end) {
    const size_t in = std::min(rest_.size(), most);
    const size_t want = std::min(out.size() - done, most);
    stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(rest_.data()));
    stream.avail_in = static_cast<uInt>(in);
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + done);
    stream.avail_out = static_cast<uInt>(want);
    const int result = inflate(&stream, Z_NO_FLUSH);
    state_->is_at_end = result == Z_STREAM_END;
    if (result != Z_OK && result != Z_STREAM_END) fail(Errc::format, "the deflated bytes are damaged");
    rest_ = rest_.subspan(in - stream.avail_in);
    done += want - stream.avail_out;
  }
  position_ += done;
  return done;
}

}  // namespace cbk
