#include "host/formats/hdf5/btree2.hpp"

#include <vector>

namespace cbk::hdf5 {
namespace {

unsigned bytes_for(uint64_t value) {
  return value == 0 ? 1 : (static_cast<unsigned>(std::bit_width(value)) - 1) / 8 + 1;
}

struct Level {
  uint64_t max_records = 0;
  unsigned total_bytes = 0;  // of the field "records below" in a pointer to a node of this level
};

class Walk {
 public:
  Walk(const Image& image, uint64_t address, RecordType type, const std::function<void(Cursor)>& visit)
      : image_(image), type_(type), visit_(visit) {
    const FieldSizes sizes = image.sizes();
    Cursor in = image.checked(address, 4 + 1 + 1 + 4 + 2 + 2 + 1 + 1 + sizes.address + 2 + sizes.length + 4,
                              "BTHD", "a B-tree");
    in.skip(1);
    if (in.u8() != static_cast<uint8_t>(type)) damaged("a B-tree of the wrong type");
    node_size_ = in.u32();
    record_size_ = in.u16();
    const uint16_t depth = in.u16();
    in.skip(2);
    root_ = in.address();
    root_records_ = in.u16();
    if (record_size_ == 0 || node_size_ < 64 || node_size_ > (1U << 26) || depth > 16)
      damaged("a B-tree with impossible sizes");
    levels_.resize(depth + 1U);
    levels_[0].max_records = (node_size_ - 10) / record_size_;
    count_bytes_ = bytes_for(levels_[0].max_records);
    uint64_t below = levels_[0].max_records;
    for (size_t level = 1; level <= depth; ++level) {
      const uint64_t pointer = pointer_size(level);
      levels_[level].max_records =
          (node_size_ - 10 - std::min<uint64_t>(pointer, node_size_ - 10)) / (record_size_ + pointer);
      below = checked_add(checked_mul(levels_[level].max_records + 1, below, "a B-tree"),
                          levels_[level].max_records, "a B-tree");
      levels_[level].total_bytes = bytes_for(below);
    }
  }

  void run() {
    if (root_ != undefined_address && root_records_ > 0) node(root_, root_records_, levels_.size() - 1);
  }

 private:
  /// The size of a pointer in a node of `level` to a node of the level below.
  [[nodiscard]] uint64_t pointer_size(size_t level) const {
    return image_.sizes().address + count_bytes_ + (level > 1 ? levels_[level - 1].total_bytes : 0);
  }

  void node(uint64_t address, uint64_t records, size_t level) {
    if (records > levels_[level].max_records) damaged("a B-tree node with {} records", records);
    const uint64_t pointer = level > 0 ? pointer_size(level) : 0;
    const uint64_t length = 6 + records * record_size_ + (level > 0 ? (records + 1) * pointer : 0) + 4;
    Cursor in = image_.checked(address, length, level > 0 ? "BTIN" : "BTLF", "a B-tree node");
    image_.claim_structure(address, node_size_);
    in.skip(1);
    if (in.u8() != static_cast<uint8_t>(type_)) damaged("a B-tree node of the wrong type");
    const ByteView body = in.take(records * record_size_);
    for (uint64_t i = 0; i <= records; ++i) {
      if (level > 0) {
        const uint64_t child = in.address();
        const uint64_t count = in.number(count_bytes_);
        in.skip(pointer - image_.sizes().address - count_bytes_);
        node(child, count, level - 1);
      }
      if (i < records)
        visit_(Cursor(body.subspan(i * record_size_, record_size_), image_.sizes(), "a B-tree record"));
    }
  }

  const Image& image_;
  RecordType type_;
  const std::function<void(Cursor)>& visit_;
  uint32_t node_size_ = 0;
  uint64_t record_size_ = 0;
  unsigned count_bytes_ = 1;
  uint64_t root_ = 0;
  uint64_t root_records_ = 0;
  std::vector<Level> levels_;
};

}  // namespace

void for_each_record(const Image& image, uint64_t address, RecordType type,
                     const std::function<void(Cursor)>& visit) {
  Walk(image, address, type, visit).run();
}

}  // namespace cbk::hdf5
