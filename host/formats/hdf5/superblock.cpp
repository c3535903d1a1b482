#include "host/formats/hdf5/superblock.hpp"

namespace cbk::hdf5 {
namespace {

using namespace std::string_literals;

constexpr std::string_view signature{"\x89HDF\r\n\x1a\n", 8};

/// The root group's entry of versions 0 and 1: its tables are repeated there.
std::string encode_root_entry(uint64_t root, const GroupTables* tables) {
  std::string out;
  append_le<uint64_t>(out, 0);  // no name
  append_le(out, root);
  append_le<uint32_t>(out, tables != nullptr ? 1 : 0);  // whether its tables follow
  append_le<uint32_t>(out, 0);
  append_le(out, tables != nullptr ? tables->tree : 0);
  append_le(out, tables != nullptr ? tables->heap : 0);
  return out;
}

}  // namespace

uint64_t find_signature(ByteView bytes) {
  for (uint64_t at = 0; at + signature.size() <= bytes.size(); at = at == 0 ? 512 : at * 2) {
    if (as_text(bytes.subspan(at, signature.size())) == signature) return at;
  }
  return undefined_address;
}

Superblock read_superblock(ByteView file, bool may_be_cut) {
  Superblock out;
  out.start = find_signature(file);
  if (out.start == undefined_address) fail(Errc::format, "not an HDF5 file");
  const ByteView bytes = file.subspan(out.start);
  Cursor head(bytes, out.sizes, "the superblock");
  head.expect(signature);
  out.version = head.u8();
  if (out.version > 3) {
    throw Error(Errc::unsupported,
                {.problem = fmt::format("HDF5 superblock version {} is not known", out.version),
                 .expected = "0 to 3",
                 .advice = "the file is damaged, or of a newer HDF5, whose h5repack can rewrite it"});
  }
  const bool is_old = out.version < 2;
  if (is_old) head.skip(4);  // versions of parts that never had another one
  out.sizes.address = head.u8();
  out.sizes.length = head.u8();
  for (unsigned size : {out.sizes.address, out.sizes.length}) {
    if (size != 2 && size != 4 && size != 8) damaged("addresses of {} bytes", size);
  }
  const uint8_t flags = head.u8();
  if (is_old) {
    out.ranks.leaf = head.u16();
    out.ranks.tree = head.u16();
    head.skip(4);  // flags that are always 0
    if (out.version == 1) {
      out.chunk_rank = head.u16();
      head.skip(2);
    }
  } else {
    out.is_open_for_writing = out.version == 3 && (flags & 5) != 0;
  }

  Cursor in(bytes, out.sizes, "the superblock");
  in.skip(head.position());
  out.base = in.address();
  if (out.base == undefined_address || out.base > file.size()) damaged("its base address is beyond the end");
  const uint64_t extension = in.address();  // in the older versions a place for free space, never used
  out.end = in.address();
  if (out.end != undefined_address && out.end > file.size() && !may_be_cut) {
    damaged("it should have {} bytes, but there are {}; is it cut short?", out.end, file.size());
  }
  if (is_old) {
    in.address();                  // driver information
    in.number(out.sizes.address);  // the root's name
    out.root = in.address();
    in.skip(8 + 16);
    out.size = in.position();
    return out;
  }
  out.extension = extension;
  out.root = in.address();
  const ByteView covered = bytes.first(in.position());
  if (in.u32() != lookup3(covered)) damaged("the checksum of the superblock is wrong");
  out.size = in.position();
  return out;
}

std::string encode_superblock(uint64_t root, const GroupTables& tables, uint64_t end) {
  std::string out(signature);
  out.append("\0\0\0\0\0\x8\x8\0", 8);
  append_le<uint16_t>(out, GroupRanks{}.leaf);
  append_le<uint16_t>(out, GroupRanks{}.tree);
  append_le<uint32_t>(out, 0);
  append_le<uint64_t>(out, 0);
  append_le(out, undefined_address);
  append_le(out, end);
  append_le(out, undefined_address);
  return out + encode_root_entry(root, &tables);
}

std::string replace_root(ByteView file, const Superblock& superblock, uint64_t root,
                         const GroupTables* tables, uint64_t end) {
  std::string out(as_text(file.subspan(superblock.start, superblock.size)));
  if (superblock.version < 2) {
    const std::string entry = encode_root_entry(root, tables);
    const size_t entry_at = out.size() - entry.size();
    out.replace(entry_at, entry.size(), entry);
    store_le(&out[entry_at - 16], end);  // the address of driver information is between
    return out;
  }
  store_le(&out[out.size() - 4 - 8], root);
  store_le(&out[out.size() - 4 - 16], end);
  const size_t covered = out.size() - 4;
  store_le(&out[covered], lookup3(as_bytes(out).first(covered)));
  return out;
}

}  // namespace cbk::hdf5
