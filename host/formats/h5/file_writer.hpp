// Shared by the writers of all H5 formats: the structures, then the data, both placed before any byte is
// written, so that the readable part of a truncated file can be found. If chunks are compressed, their
// places are known only when all of them are written; then the structures come last.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "host/formats/h5/packed_dataset.hpp"
#include "host/formats/hdf5/builder.hpp"
#include "host/formats/writer.hpp"

namespace cbk::h5 {

class FileWriter : public ShardWriter {
 public:
  [[nodiscard]] const std::vector<Item>& items() const override { return items_; }
  [[nodiscard]] uint64_t overhead() const override { return overhead_; }
  [[nodiscard]] const std::vector<std::string>& warnings() const override { return warnings_; }
  std::vector<Slot> lay_out_in(StagedFile& file) override;
  void finish(const std::vector<uint32_t>& crcs) override;

 protected:
  FileWriter(fs::path target, const WriteOptions& options)
      : ShardWriter(std::move(target), options.overwrite),
        compression_(options.compression),
        origin_(options.origin) {
    overhead_ += origin_.size();
  }

  /// Reserves room for this many datasets.
  void reserve_items(size_t count) {
    items_.reserve(count);
    offsets_.reserve(count);
  }

  /// A planned dataset: its elements are an item, unless it has none.
  struct Plan {
    Tensor tensor;
    std::optional<uint32_t> item;
    PackedDataset* packed = nullptr;  // where its elements are compressed
  };
  /// Errors: a shape or dtype that HDF5 cannot hold.
  Plan plan_dataset(const std::string& key, std::string_view name, const Tensor& tensor);

  /// Adds all objects and the root's attributes. Returns the links of the root group, valid until the next
  /// call.
  /// It is called twice, and adds the same sizes each time.
  virtual const hdf5::Builder::Links& build(hdf5::Builder& builder, hdf5::HeaderBuilder& root) = 0;
  /// The header of a dataset without its attributes. Its chunks are written.
  hdf5::HeaderBuilder start_dataset(hdf5::Builder& builder, const Plan& plan) const;
  static hdf5::HeaderBuilder start_empty_dataset(DType dtype);
  static void add_number(hdf5::HeaderBuilder& header, std::string_view name, double value);
  static void add_count(hdf5::HeaderBuilder& header, std::string_view name, int64_t count);

  std::vector<std::string> warnings_;
  uint64_t overhead_ = 4096;

 private:
  /// The end of the structures that begin at `start`.
  uint64_t add_structures(uint64_t start, hdf5::Builder::Sink sink);
  void write_structures(uint64_t start);
  /// Moves the data after the structures.
  void make_room();

  Compression compression_;
  std::string origin_;
  std::deque<PackedDataset> packed_;
  PackedFile packed_file_;
  std::vector<Item> items_;
  std::vector<uint64_t> offsets_;
  uint64_t data_end_ = hdf5::superblock_size;
  std::string superblock_;  // written by `finish`: without it the file is not HDF5
  StagedFile* file_ = nullptr;
};

}  // namespace cbk::h5
