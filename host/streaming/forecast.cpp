#include "host/streaming/forecast.hpp"

#include <algorithm>

#include "host/streaming/execution.hpp"
#include "host/streaming/expansion.hpp"
#include "host/tensor/expression.hpp"

namespace cbk {

Forecast forecast(const Writer& writer, const StreamingOptions& options) {
  check_expansion(writer, options.max_expansion);
  Forecast result;
  result.bytes_written = writer.overhead();
  uint64_t largest = 0;  // of the buffers a thread works in
  for (const Item& item : writer.items()) {
    const Tensor::Cost cost = item.tensor.cost();
    result.bytes_read += cost.bytes_read;
    result.bytes_written += item.tensor.nbytes();
    const Expression& expression = *item.tensor.expression();
    const auto piece = static_cast<uint64_t>(piece_elements(expression, 0)) * expression.itemsize();
    largest = std::max({largest, std::min({item.tensor.nbytes(), piece, block_size(options)})});
    if (cost.lossy) result.lossy.push_back(item.key);
  }
  result.tensors = writer.items().size();
  result.peak_memory = largest * buffers_per_block * static_cast<uint64_t>(thread_count(options));
  return result;
}

}  // namespace cbk
