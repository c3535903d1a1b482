// Chains of element-wise operations over one shape, done in one pass over memory: block by block, each block
// small enough for the first cache. A single operator is a chain of one step; recorded steps are joined into
// longer ones (host/compute/fuse.hpp).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "host/compute/element_op.hpp"
#include "host/compute/kernel.hpp"

namespace cbk::compute {

/// A value inside a chain.
struct ChainValue {
  enum class Kind : uint8_t { input, constant, step };
  Kind kind = Kind::input;
  int index = 0;
  bool operator==(const ChainValue&) const = default;
};

struct ElementChain {
  struct Step {
    ElementOp op = ElementOp::copy;
    std::array<ChainValue, 3> operands;
  };
  struct Output {
    Operand to;
    ChainValue value;
  };

  DType type = DType::float32;  // that is computed in: float32, float64 or int64
  Shape domain;
  std::vector<Operand> inputs;  // of the domain's shape; stride 0 where they are repeated
  std::vector<double> constants;
  std::vector<Step> steps;
  std::vector<Output> outputs;
};

/// The chain without steps, inputs and constants that no output needs. A value that is only a copy of a
/// step's result is written by that step.
ElementChain pruned(const ElementChain& chain);

class Elementwise final : public Kernel {
 public:
  /// Errors: `dtype` if the type has no such operation.
  explicit Elementwise(ElementChain chain);
  void run() override;

  [[nodiscard]] const ElementChain& chain() const { return chain_; }

 private:
  /// The source from which a loop reads a value.
  struct Source {
    enum class Kind : uint8_t { scalar, memory, slot } kind = Kind::slot;
    int index = 0;  // of the operand, or the slot
  };
  struct Planned {
    ElementLoop loop = nullptr;
    std::array<int, 3> operands{};  // value numbers
    int result = 0;
    int count = 0;  // of operands
    ElementOp op = ElementOp::copy;
    bool is_pair = false;  // this operation and one before it
  };
  template <typename T>
  void plan();
  template <typename T>
  void run_typed();
  template <typename T>
  void run_scalars();
  template <typename T>
  void run_task(int64_t task);
  template <typename T>
  void run_block(int64_t begin, int64_t count, std::byte* scratch) const;
  void prefetch(int64_t next, size_t step) const;
  [[nodiscard]] int number(ChainValue value) const;
  [[nodiscard]] bool is_read_after(int step, const Operand& written) const;
  void join_pairs();
  bool join(size_t first, size_t second);
  void give_slots();

  ElementChain chain_;
  int64_t numel_ = 0;
  std::vector<Operand> views_;   // inputs, then outputs, with the fewest dimensions
  std::vector<Source> sources_;  // by value number: inputs, constants, steps
  std::vector<int> stores_;      // by value number: the output that its step writes at once, or -1
  std::vector<Planned> scalar_steps_, vector_steps_;
  std::vector<int> prefetched_;   // inputs that the steps read from memory, where they are large
  std::vector<int> loads_;        // inputs that are brought into a slot
  std::vector<int> late_stores_;  // outputs that are written from a value
  int slots_ = 0;
  std::vector<std::byte> scalars_;  // by value number, 8 bytes each
};

}  // namespace cbk::compute
