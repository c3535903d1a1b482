// Rows of a table by number.
#include <cstring>

#include "host/base/error.hpp"
#include "host/base/parallel.hpp"
#include "host/compute/function_kernel.hpp"
#include "host/compute/operators.hpp"
#include "host/compute/promote.hpp"
#include "host/compute/row_math.hpp"
#include "host/compute/tape.hpp"

namespace cbk::compute {
namespace {

constexpr int64_t rows_per_task = 256, columns_per_task = 256;

void check_ids(const Operand& ids, int64_t rows) {
  const auto* values = ids.data<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    if (values[i] < 0 || values[i] >= rows) {
      fail(Errc::value, "embedding: id {} at position {} is not in [0, {}), the rows of the weight",
           values[i], i, rows);
    }
  }
}

/// Adds rows of the gradient to rows of the table, in the order of the ids. Each task has its own columns.
template <typename T>
void add_rows(const Operand& ids, const Operand& gradient, const Operand& table) {
  const int64_t width = table.shape.back();
  T* out = table.data<T>();
  std::fill_n(out, table.numel(), T{});
  parallel_for((width + columns_per_task - 1) / columns_per_task, [&](int64_t task) {
    const int64_t begin = task * columns_per_task;
    const int64_t count = std::min(columns_per_task, width - begin);
    for (int64_t i = 0; i < ids.numel(); ++i) {
      row_add(out + ids.data<int64_t>()[i] * width + begin, gradient.data<T>() + i * width + begin, T{1},
              count);
    }
  });
}

VariablePtr table_gradient(const VariablePtr& ids, const VariablePtr& g, const Shape& shape) {
  const DType type = compute_type(g->dtype());
  const VariablePtr dense = contiguous(cast(g, type));
  const VariablePtr out = Variable::empty(type, shape, g->device());
  execute({ids->operand(), dense->operand()}, {out->operand()},
          [type](const std::vector<Operand>& reads, const std::vector<Operand>& writes) {
            if (type == DType::float32) {
              add_rows<float>(reads[0], reads[1], writes[0]);
            } else {
              add_rows<double>(reads[0], reads[1], writes[0]);
            }
          });
  return cast(out, g->dtype());
}

}  // namespace

VariablePtr embedding(const VariablePtr& ids, const VariablePtr& weight) {
  if (is_floating(ids->dtype()))
    fail(Errc::dtype, "embedding: ids must be whole numbers, not {}: say {{ dtype = \"int64\" }}",
         name_of(ids->dtype()));
  if (weight->dim() != 2)
    fail(Errc::shape, "embedding: the weight must have two dims [rows, width], not {}",
         to_string(weight->shape()));
  const Device device = common_device({&ids, &weight});
  const VariablePtr places = contiguous(cast(ids, DType::int64));
  const VariablePtr table = contiguous(weight);
  Shape shape = ids->shape();
  shape.push_back(weight->shape()[1]);
  VariablePtr out = Variable::empty(weight->dtype(), shape, device);
  execute({places->operand(), table->operand()}, {out->operand()},
          [](const std::vector<Operand>& reads, const std::vector<Operand>& writes) {
            const auto row_bytes = static_cast<size_t>(reads[1].shape[1]) * size_of(reads[1].dtype);
            check_ids(reads[0], reads[1].shape[0]);
            const int64_t count = reads[0].numel();
            parallel_for((count + rows_per_task - 1) / rows_per_task, [&](int64_t task) {
              for (int64_t i = task * rows_per_task; i < std::min(count, (task + 1) * rows_per_task); ++i) {
                std::memcpy(writes[0].bytes() + static_cast<size_t>(i) * row_bytes,
                            reads[1].bytes() + static_cast<size_t>(reads[0].data<int64_t>()[i]) * row_bytes,
                            row_bytes);
              }
            });
          });
  return recorded("embedding", out, {weight}, [&]() -> Node::Backward {
    const Saved saved(places);
    return [saved, of = weight->shape()](const VariablePtr& g) -> std::vector<VariablePtr> {
      return {table_gradient(saved.get(), g, of)};
    };
  });
}

}  // namespace cbk::compute
