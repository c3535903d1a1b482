// Pickles by hand, and the values and errors that tests of pickles and torch files look for.
#pragma once

#include <catch2/catch.hpp>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "host/formats/pickle/unpickler.hpp"

namespace cbk {

inline std::string text(std::string_view value) {
  std::string out = "X";
  append_le(out, static_cast<uint32_t>(value.size()));
  return out + std::string(value);
}
inline std::string global(std::string_view module, std::string_view name) {
  return fmt::format("c{}\n{}\n", module, name);
}
inline std::string floats(std::string_view key, int numel) {
  return "(" + text("storage") + global("torch", "FloatStorage") + text(key) + text("cpu") + "K" +
         static_cast<char>(numel) + "tQ";
}
inline std::string repeat(std::string_view part, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += part;
  return out;
}

/// Opcodes of protocol 4.
inline std::string short_text(std::string_view s) {
  return "\x8c" + std::string(1, static_cast<char>(s.size())) + std::string(s);
}

inline std::string found(std::string_view module, std::string_view name) {
  return short_text(module) + short_text(name) + "\x93";
}

/// The message of the error that `body` must end with.
inline std::string message_of(const std::function<void()>& body, Errc code) {
  try {
    body();
  } catch (const Error& error) {
    INFO(error.what());
    REQUIRE(name_of(error.code()) == name_of(code));
    return error.what();
  }
  FAIL("no error");
  return "";
}

/// What a pickle of these opcodes of protocol 2 holds.
inline Value plain(const std::string& opcodes) {
  return pickle::load(std::string("\x80\x02") + opcodes + ".", {});
}

inline Value number_tensor(int64_t count, float first = 0) {
  Bytes bytes(static_cast<size_t>(count) * 4);
  for (int64_t i = 0; i < count; ++i) store_le(bytes.data() + i * 4, first + static_cast<float>(i));
  return Tensor::from_bytes(DType::float32, {count}, std::move(bytes));
}

inline Value dict_of(std::initializer_list<std::pair<const char*, Value>> entries) {
  Value dict = Value::dict();
  for (const auto& [key, value] : entries) dict.as_dict().set(key, value);
  return dict;
}

}  // namespace cbk
