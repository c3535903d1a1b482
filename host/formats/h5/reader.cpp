#include "host/formats/h5/reader.hpp"

#include <cmath>
#include <set>

#include "host/formats/h5/reader_v04.hpp"
#include "host/formats/h5/reader_v05.hpp"
#include "host/formats/h5/text.hpp"
#include "host/value/json.hpp"
#include "host/value/kind.hpp"
#include "host/value/unreadable.hpp"

namespace cbk::h5 {
namespace {

double version_of(const hdf5::Attributes& root) {
  const auto value = root.value("__version__");
  if (!value) return 0.1;
  if (!value->is(Value::Kind::real) && !value->is(Value::Kind::integer)) {
    fail(Errc::format, "__version__ is {}, not a number", a_kind(*value));
  }
  const double version = value->as_double();
  if (!(version > 0.05)) fail(Errc::format, "__version__ is {}", version);
  if (version > 0.55) {
    fail(Errc::unsupported,
         "the checkpoint has format version {:g}, newer than 0.5; a newer release is needed", version);
  }
  return version;
}

/// Fails for a list of checkpoints, which has no tree.
[[noreturn]] void fail_list_of_checkpoints(const hdf5::Attributes& root) {
  const auto info = root.value("ckpt_info");
  std::string latest;
  if (info && (info->is(Value::Kind::string) || info->is(Value::Kind::bytes))) {
    const Value parsed = parse_json(info->is(Value::Kind::string) ? info->as_string() : info->as_bytes().data,
                                    {.python = true});
    const Value* paths = parsed.find("ckpt_paths");
    if (paths != nullptr && paths->is(Value::Kind::sequence)) {
      for (const Value& path : paths->as_sequence().items) {
        if (path.is(Value::Kind::string)) latest = path.as_string();
      }
    }
  }
  fail(Errc::unsupported, "this file is a list of checkpoints, not a checkpoint{}",
       latest.empty() ? std::string("; it is empty") : "; the latest it names is " + quote(latest));
}

/// A file without a spec: groups are dicts, datasets their leaves.
class PlainTree {
 public:
  explicit PlainTree(Datasets& datasets) : datasets_(datasets) {}

  /// Links are charged wherever their group appears: groups nested in each other many times exceed the memory
  /// that the file may use.
  Value group(const Located& located) {
    if (!located.object.is_group()) {
      hdf5::damaged("the object at byte {} is neither a dataset nor a group", located.object.address);
    }
    if (open_.size() == max_depth) fail(Errc::format, "groups nested more than {} deep", max_depth);
    const auto [here, is_new] = open_.insert({located.file.get(), located.object.address});
    if (!is_new) fail(Errc::format, "a group is inside itself");
    const std::vector<hdf5::Link>& links = located.file->links_of(located.object);
    located.file->memory()->charge(link_bytes * (links.size() + 1));
    Value tree = Value::dict();
    for (const hdf5::Link& link : links) {
      const std::string name = percent_decode(link.name);
      within(quote(name), [&] {
        if (tree.find(name) != nullptr) fail(Errc::format, "two datasets have this name");
        if (auto value = member(located, link)) tree.as_dict().set(name, std::move(*value));
      });
    }
    open_.erase(here);
    return tree;
  }

 private:
  static constexpr size_t max_depth = 64;
  static constexpr uint64_t link_bytes = 256;  // of an entry of the tree in memory, about

  /// As here, or as Keras 3 says it of elements for which h5py has no type.
  static bool is_bfloat16(const Located& located) {
    const hdf5::Attributes attributes = located.file->attributes(located.object);
    if (attributes.is_set("is_bfloat16")) return true;
    const hdf5::Message* type = located.object.find(hdf5::MessageType::datatype);
    if (type == nullptr || located.file->objects().datatype(*type).kind != hdf5::Datatype::Class::opaque)
      return false;
    const hdf5::Attribute* named = attributes.find("dtype");
    if (named == nullptr || !hdf5::Attributes::is_readable(*named)) return false;
    const Value dtype = attributes.value(*named);
    return dtype.is(Value::Kind::string) && dtype.as_string() == "bfloat16";
  }

  /// Broken links, and elements without a dtype here, are values that cannot be read. A named datatype is not
  /// a
  /// value: nothing is stored under it.
  std::optional<Value> member(const Located& parent, const hdf5::Link& link) {
    const auto why_not = [&](const Error& error) {
      return unreadable(
          fmt::format("dataset {} cannot be read: {}", quote(percent_decode(link.name)), error.what()));
    };
    Located located;
    try {
      located = datasets_.follow(parent.file, link);
      if (!parent.name.empty()) located.name = parent.name + "/" + link.name;
    } catch (const Error& error) {
      const bool is_cut = datasets_.files().may_be_cut() && error.code() == Errc::format;
      if (is_cut) return why_not(error);
      if (link.kind == hdf5::Link::Kind::hard || error.code() == Errc::refused ||
          error.code() == Errc::external)
        throw;
      return why_not(error);
    }
    if (located.object.is_datatype()) return std::nullopt;
    if (!located.object.is_dataset()) return group(located);
    try {
      if (Datasets::holds_texts(located)) return datasets_.texts(located);
      const bool is_bfloat = is_bfloat16(located);
      return datasets_.leaf(located, {is_bfloat ? std::optional(DType::bfloat16) : std::nullopt});
    } catch (const Error& error) {
      const bool is_cut = datasets_.files().may_be_cut() && error.code() == Errc::format;
      if (!is_cut && error.code() != Errc::unsupported && error.code() != Errc::io) throw;
      return why_not(error);
    }
  }

  Datasets& datasets_;
  std::set<std::pair<const hdf5::File*, uint64_t>> open_;  // groups that are being read
};

/// Root attributes about the whole checkpoint.
Value read_metadata(const hdf5::Attributes& root) {
  Value metadata = Value::dict();
  for (const hdf5::Attribute& attribute : root.list()) {
    if (attribute.name == "__spec__" || attribute.name.ends_with(".__metadata__")) continue;
    if (!hdf5::Attributes::is_readable(attribute)) continue;
    metadata.as_dict().set(
        attribute.name, within("attribute " + quote(attribute.name), [&] { return root.value(attribute); }));
  }
  return metadata;
}

ExternalFiles open_files(std::shared_ptr<const MappedFile> file, const OpenOptions& options,
                         MemoryPtr memory) {
  try {
    return {std::move(file), options.allow_external, std::move(memory), options.salvage};
  } catch (const Error& error) {
    if (!options.salvage || error.code() != Errc::format) throw;
    throw error.in("nothing can be salvaged: the tables that name its tensors are not in the file");
  }
}

/// What other programs do not read either, such as another file that was appended.
void warn_of_rest(hdf5::File& file, std::vector<std::string>& warnings) {
  const hdf5::Superblock& superblock = file.objects().image().superblock();
  const uint64_t size = file.mapped()->size();
  if (superblock.base != 0 || superblock.end == hdf5::undefined_address || superblock.end >= size) return;
  warnings.push_back(
      fmt::format("{} behind the end that the file states (byte {}) are not read: another file, or other "
                  "data, was added",
                  format_size(size - superblock.end), superblock.end));
}

}  // namespace

bool is_hdf5(ByteView bytes) {
  return hdf5::find_signature(bytes) != hdf5::undefined_address;
}

Checkpoint read(std::shared_ptr<const MappedFile> file, const OpenOptions& options, MemoryPtr memory) {
  Checkpoint checkpoint;
  checkpoint.path = file->path();
  ExternalFiles files = open_files(std::move(file), options, std::move(memory));
  Datasets datasets(files);
  const hdf5::Attributes root = files.main()->attributes(files.main()->root());
  checkpoint.metadata = read_metadata(root);
  warn_of_rest(*files.main(), checkpoint.warnings);
  if (root.find("__spec__") != nullptr) {
    const double version = version_of(root);
    checkpoint.format = "cerebras-h5";
    checkpoint.version = fmt::format("{:.1f}", version);
    checkpoint.root = version > 0.45
                          ? read_v05(datasets, root, options.allow_records)
                          : read_v04(datasets, version, options.allow_records, checkpoint.warnings);
  } else if (root.find("ckpt_info") != nullptr) {
    fail_list_of_checkpoints(root);
  } else if (root.find("__version__") != nullptr) {
    fail(Errc::format, "the checkpoint has no __spec__: its tree is lost");
  } else {
    checkpoint.format = "flat-h5";
    checkpoint.root = PlainTree(datasets).group({files.main(), files.main()->root(), ""});
  }
  datasets.places().refuse_overlaps();
  checkpoint.files = files.paths();
  return checkpoint;
}

}  // namespace cbk::h5
