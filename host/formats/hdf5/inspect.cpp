#include "host/formats/hdf5/inspect.hpp"

#include <unordered_set>

#include "host/formats/hdf5/chunk_index.hpp"
#include "host/formats/hdf5/file.hpp"

namespace cbk::hdf5 {
namespace {

constexpr int max_depth = 64;

template <typename Numbers>
Value list_of(const Numbers& numbers) {
  Value list = Value::list();
  for (const uint64_t number : numbers) {
    list.as_sequence().items.push_back(Value::integer(std::to_string(number)));
  }
  return list;
}

class Inspector {
 public:
  explicit Inspector(File& file) : file_(file) {}

  Value run() {
    Value result = Value::dict();
    result.as_dict().set("attributes", attributes_of(file_.root()));
    walk(file_.root(), "", 0);
    result.as_dict().set("datasets", datasets_);
    return result;
  }

 private:
  Value attributes_of(const ObjectHeader& object) {
    Value values = Value::dict();
    const Attributes attributes = file_.attributes(object);
    for (const Attribute& attribute : attributes.list()) {
      values.as_dict().set(attribute.name, Attributes::is_readable(attribute)
                                               ? attributes.value(attribute)
                                               : Value("<" + attribute.type.describe() + ">"));
    }
    return values;
  }

  void walk(const ObjectHeader& group, const std::string& path, int depth) {
    if (depth > max_depth || !groups_.insert(group.address).second) return;
    for (const Link& link : file_.links_of(group)) {
      const std::string name = path + link.name;
      file_.memory()->charge(path.size());
      if (link.kind != Link::Kind::hard) {
        add_link(name, link);
        continue;
      }
      const ObjectHeader object = file_.objects().read(link.address);
      if (object.is_dataset()) {
        within([&] { return "dataset " + quote(name); }, [&] { add_dataset(name, object); });
      } else if (object.is_group()) {
        walk(object, name + "/", depth + 1);
      } else if (!object.is_datatype()) {
        damaged("{} is neither a dataset nor a group", quote(name));
      }
    }
  }

  /// A name that refers to an object elsewhere.
  void add_link(const std::string& name, const Link& link) {
    Value entry = Value::dict();
    entry.as_dict().set("name", name);
    entry.as_dict().set("link", link.file.empty() ? link.target : link.file + ":" + link.target);
    datasets_.as_sequence().items.push_back(entry);
  }

  void add_dataset(const std::string& name, const ObjectHeader& object) {
    const Dataset dataset = read_dataset(file_.objects(), object);
    const Layout& layout = dataset.layout;
    const bool is_chunked = layout.kind == Layout::Kind::chunked;
    Value entry = Value::dict();
    Dict& members = entry.as_dict();
    members.set("name", name);
    members.set("shape", dataset.space.is_null ? Value() : list_of(dataset.space.extents));
    members.set("dtype", dataset.type.describe());
    members.set("chunks", is_chunked ? list_of(layout.chunk) : Value());
    std::vector<uint64_t> filters;
    for (const Filter& filter : dataset.filters) filters.push_back(filter.id);
    members.set("filters", list_of(filters));
    members.set("attributes", attributes_of(object));
    members.set("offset", offset_of(layout));
    members.set("stored", static_cast<int64_t>(stored_bytes(dataset)));
    members.set("object", static_cast<int64_t>(object.address));
    datasets_.as_sequence().items.push_back(entry);
  }

  [[nodiscard]] Value offset_of(const Layout& layout) const {
    const ByteView file = file_.mapped()->bytes();
    if (layout.kind == Layout::Kind::compact) return static_cast<int64_t>(layout.data.data() - file.data());
    if (layout.kind != Layout::Kind::contiguous || layout.address == undefined_address) return {};
    return static_cast<int64_t>(file_.objects().image().base() + layout.address);
  }

  [[nodiscard]] uint64_t stored_bytes(const Dataset& dataset) const {
    const Layout& layout = dataset.layout;
    if (layout.kind == Layout::Kind::compact) return layout.data.size();
    if (layout.kind == Layout::Kind::contiguous) {
      return layout.address == undefined_address ? 0 : dataset.space.count() * dataset.type.size;
    }
    if (layout.kind != Layout::Kind::chunked) return 0;  // in other files or datasets
    uint64_t total = 0;
    for (const StoredChunk& chunk : read_chunk_index(file_.objects().image(), dataset)) total += chunk.size;
    return total;
  }

  File& file_;
  std::unordered_set<uint64_t> groups_;
  Value datasets_ = Value::list();
};

}  // namespace

Value inspect(const fs::path& path) {
  return within(quote(path.string()), [&] {
    File file(MappedFile::open(path));
    return Inspector(file).run();
  });
}

}  // namespace cbk::hdf5
