// HDF5 datatypes and dataspaces.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/formats/hdf5/image.hpp"
#include "host/tensor/tensor.hpp"

namespace cbk::hdf5 {

struct Datatype {
  enum class Class : uint8_t {
    integer,
    real,
    time,
    string,
    bitfield,
    opaque,
    compound,
    reference,
    enumeration,
    vlen,
    array
  };
  struct Member {
    std::string name;
    uint32_t offset = 0;
    std::shared_ptr<const Datatype> type;
  };

  Class kind = Class::integer;
  uint32_t size = 0;  // bytes of one element
  bool is_signed = false;
  bool big_endian = false;
  bool is_plain = true;  // numbers: all bits count and floats are IEEE (or bfloat16)
  bool is_bfloat = false;
  uint8_t exponent_bits = 0;  // real
  uint8_t mantissa_bits = 0;
  bool is_text = false;                  // vlen: of characters
  uint8_t padding = 0;                   // string: 0 NUL-terminated, 1 NUL-padded, 2 space-padded
  std::shared_ptr<const Datatype> base;  // enumeration, vlen, array
  std::vector<Member> members;           // compound
  std::vector<std::string> names;        // enumeration
  std::vector<int64_t> values;           // enumeration
  uint64_t count = 1;                    // array: elements

  /// The dtype in cbk, if there is one: h5py's bool is an enumeration, its complex a compound of r and i.
  [[nodiscard]] std::optional<DType> dtype() const;
  /// The narrowest dtype for numbers that do not use all of their bits (N-Bit), if there is one.
  [[nodiscard]] std::optional<DType> widened() const;
  /// Whether the elements of that dtype are in big-endian order.
  [[nodiscard]] bool is_swapped() const;
  /// Bytes that are swapped together: half of a complex number.
  [[nodiscard]] uint32_t component_size() const;
  /// Whether the elements are strings, or sequences of bytes.
  [[nodiscard]] bool is_texts() const;
  /// "float32", "bool", "string", "opaque(16)", …, for people.
  [[nodiscard]] std::string describe() const;
};

Datatype read_datatype(Cursor& in, int depth = 0);

struct Dataspace {
  bool is_null = false;
  std::vector<uint64_t> extents;  // empty: a scalar
  std::vector<uint64_t> limits;   // the largest extents; all bits set: none; empty: the extents
  /// Elements; an overflow is a `format` error.
  [[nodiscard]] uint64_t count() const;
  [[nodiscard]] Shape shape() const;
};

Dataspace read_dataspace(Cursor& in);

}  // namespace cbk::hdf5
