// Tensors whose element type only TensorFlow has, texts above all: as objects in the tree.
//
//   type  "tensorflow.tensor"
//   repr  "string [2, 3]"
//   state a dict: dtype ("string", "qint8", …), shape (torch_size), elements (a tensor: whole numbers of a
//   quantized
//         type; of texts the bytes as they are stored: all lengths as varints, their checksum, all texts)
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "host/formats/tensorflow/dtypes.hpp"
#include "host/value/value.hpp"

namespace cbk::tensorflow {

struct ForeignTensor {
  const DTypeInfo* dtype = nullptr;
  Shape shape;
  Tensor elements;
};

Value to_value(const ForeignTensor& tensor);
bool is_foreign(const Value& value);
/// Errors: `value` for an object that `to_value` did not make.
ForeignTensor to_foreign(const Value& value);

/// The texts of a tensor of texts in C order; they are views of `bytes`, which are its elements. Errors:
/// `format`.
std::vector<std::string_view> decode_texts(ByteView bytes, int64_t count);

/// The stored form of texts, and its masked checksum for the index.
struct EncodedTexts {
  std::string bytes;
  uint32_t crc = 0;
};
EncodedTexts encode_texts(std::span<const std::string_view> texts);

/// The masked checksum of stored texts for the index. Errors: `format`, also for lengths that do not match
/// their own checksum.
uint32_t texts_crc(ByteView bytes, int64_t count, bool big_endian);

/// Compares stored texts with their checksums. Errors: `format`.
void verify_texts(ByteView bytes, int64_t count, uint32_t crc, bool big_endian);

/// `root` for another format: without tensors of texts, which are added to `left_out`, unless the format
/// holds them. Errors: `dtype`, naming the tensors of quantized types.
Value for_others(const Value& root, bool holds_texts, std::vector<std::string>& left_out);

}  // namespace cbk::tensorflow
