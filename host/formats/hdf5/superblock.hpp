// The superblock of an HDF5 file: reading it, and writing one with another root group.
#pragma once

#include <string>

#include "host/formats/hdf5/cursor.hpp"

namespace cbk::hdf5 {

/// Half the capacity of the nodes of old-style groups: of the leaves, and of the tree above them.
struct GroupRanks {
  uint16_t leaf = 4;
  uint16_t tree = 16;
};
inline constexpr uint16_t usual_chunk_rank = 32;  // the same for the B-trees of chunks

/// The tables of an old-style group: addresses of its B-tree and its heap.
struct GroupTables {
  uint64_t tree = 0;
  uint64_t heap = 0;
};

struct Superblock {
  uint64_t start = 0;  // in the file
  uint64_t size = 0;
  uint8_t version = 0;
  FieldSizes sizes;
  GroupRanks ranks;                        // versions 0 and 1; in later ones the extension may have others
  uint16_t chunk_rank = usual_chunk_rank;  // the same
  bool is_open_for_writing = false;        // version 3 only
  uint64_t base = 0;                       // what addresses are relative to
  uint64_t extension = undefined_address;  // versions 2 and 3
  uint64_t end = undefined_address;        // behind the last byte that counts, relative to nothing
  uint64_t root = undefined_address;
};

/// The offset of HDF5's signature: 0, 512, 1024, 2048, …; `undefined_address` if it is missing.
uint64_t find_signature(ByteView bytes);

/// Errors: `format` for a file that is not HDF5, damaged or truncated; `unsupported` for an unknown version.
Superblock read_superblock(ByteView file, bool may_be_cut = false);

inline constexpr uint64_t superblock_size = 96;  // of what `encode_superblock` gives

/// The superblock (version 0) of a new file.
std::string encode_superblock(uint64_t root, const GroupTables& tables, uint64_t end);

/// The superblock of `file` with another root group and another end. `tables`: those of the root, or nullptr
/// if it is not an old-style group. Addresses have 8 bytes.
std::string replace_root(ByteView file, const Superblock& superblock, uint64_t root,
                         const GroupTables* tables, uint64_t end);

}  // namespace cbk::hdf5
