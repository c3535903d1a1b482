#include "host/formats/hdf5/file.hpp"

#include <algorithm>

#include "host/value/element.hpp"

namespace cbk::hdf5 {
namespace {

constexpr size_t few = 16;
constexpr int max_soft_links = 16;

}  // namespace

Attributes::Attributes(Objects& objects, std::vector<Attribute> list)
    : objects_(&objects), list_(std::move(list)) {
  if (list_.size() <= few) return;
  names_.reserve(list_.size());
  for (size_t i = 0; i < list_.size(); ++i) names_.emplace(list_[i].name, i);
}

const Attribute* Attributes::find(std::string_view name) const {
  if (list_.size() > few) {
    const auto found = names_.find(name);
    return found == names_.end() ? nullptr : &list_[found->second];
  }
  const auto found =
      std::find_if(list_.begin(), list_.end(), [&](const Attribute& a) { return a.name == name; });
  return found == list_.end() ? nullptr : &*found;
}

Value Attributes::element(const Datatype& type, ByteView bytes) const {
  using Class = Datatype::Class;
  if (type.kind == Class::string || (type.kind == Class::vlen && type.is_text))
    return Value(objects_->text(type, bytes));
  if (type.kind == Class::opaque) return Value::bytes(std::string(as_text(bytes)));
  const auto dtype = type.dtype();
  if (!dtype) fail(Errc::unsupported, "an attribute of type {}", type.describe());
  std::byte swapped[16];
  if (type.is_swapped()) {
    std::memcpy(swapped, bytes.data(), bytes.size());
    for (size_t at = 0; at < bytes.size(); at += type.component_size()) {
      std::reverse(swapped + at, swapped + at + type.component_size());
    }
    bytes = ByteView(swapped, bytes.size());
  }
  return element_value(*dtype, bytes);
}

bool Attributes::is_readable(const Attribute& attribute) {
  using Class = Datatype::Class;
  const Datatype& type = attribute.type;
  return type.dtype() || type.kind == Class::string || type.kind == Class::opaque ||
         (type.kind == Class::vlen && type.is_text);
}

Value Attributes::value(const Attribute& attribute) const {
  if (attribute.space.is_null) return {};
  const Datatype& type = attribute.type;
  if (type.kind == Datatype::Class::opaque) return Value::bytes(std::string(as_text(attribute.data)));
  if (attribute.space.extents.empty()) return element(type, attribute.data);
  Value list = Value::list();
  objects_->image().memory().charge(attribute.space.count() * sizeof(Value));
  for (uint64_t i = 0, count = attribute.space.count(); i < count; ++i) {
    list.as_sequence().items.push_back(element(type, attribute.data.subspan(i * type.size, type.size)));
  }
  return list;
}

std::optional<Value> Attributes::value(std::string_view name) const {
  const Attribute* found = find(name);
  if (found == nullptr) return std::nullopt;
  return within("attribute " + quote(name), [&] { return value(*found); });
}

std::optional<std::string_view> Attributes::text(std::string_view name) const {
  const Attribute* found = find(name);
  if (found == nullptr) return std::nullopt;
  const Datatype& type = found->type;
  const bool is_string =
      type.kind == Datatype::Class::string || (type.kind == Datatype::Class::vlen && type.is_text);
  if (!is_string || found->space.count() != 1) {
    fail(Errc::format, "attribute {} is a {}, not a text", quote(name), type.describe());
  }
  return objects_->text(type, found->data);
}

bool Attributes::is_set(std::string_view name) const {
  const auto found = value(name);
  if (!found) return false;
  if (found->is(Value::Kind::boolean)) return found->as_bool();
  if (found->is(Value::Kind::integer) || found->is(Value::Kind::real)) return found->as_double() != 0;
  return false;
}

namespace {

/// In versions 2 and 3 the superblock's extension has the sizes of nodes that are not as usual. A file that
/// is cut may lack it.
std::shared_ptr<const Image> open_image(std::shared_ptr<const MappedFile> file, MemoryPtr memory,
                                        bool may_be_cut) {
  const auto image = std::make_shared<Image>(std::move(file), std::move(memory), may_be_cut);
  const uint64_t address = image->superblock().extension;
  if (may_be_cut || address == undefined_address) return image;
  const ObjectHeader extension = Objects(image).read(address);
  if (const Message* ranks = extension.find(MessageType::tree_ranks)) {
    Cursor in(ranks->body, image->sizes(), "the superblock's extension");
    in.skip(1);
    const uint16_t chunk_rank = in.u16();
    const uint16_t tree = in.u16();
    image->set_ranks({in.u16(), tree}, chunk_rank);
  }
  return image;
}

}  // namespace

File::File(std::shared_ptr<const MappedFile> file, MemoryPtr memory, bool may_be_cut)
    : objects_(open_image(std::move(file), std::move(memory), may_be_cut)) {
  root_ = objects_.read(objects_.image().root());
  group(root_);
}

const File::Group& File::group(const ObjectHeader& object) {
  if (auto known = groups_.find(object.address); known != groups_.end()) return known->second;
  Group group;
  group.links = read_links(objects_.image(), object);
  Group& kept = groups_.emplace(object.address, std::move(group)).first->second;
  kept.names.reserve(kept.links.size());
  for (size_t i = 0; i < kept.links.size(); ++i) kept.names.emplace(kept.links[i].name, i);
  return kept;
}

const std::vector<Link>& File::links_of(const ObjectHeader& object) {
  return group(object).links;
}

const Link* File::find(std::string_view path) {
  std::string current(path);
  for (int hops = 0; hops <= max_soft_links; ++hops) {
    const Group* here = &groups_.at(root_.address);
    std::string_view rest = current;
    const Link* link = nullptr;
    std::string base;  // path of the group that has the link
    bool is_soft = false;
    while (true) {
      // As HDF5 does: "a//b" is "a/b" and "." is the group itself.
      while (rest.starts_with('/')) rest.remove_prefix(1);
      const std::string_view part = rest.substr(0, rest.find('/'));
      if (part.empty()) return link;
      rest.remove_prefix(part.size());
      if (part == ".") continue;
      const auto found = here->names.find(part);
      if (found == here->names.end()) return nullptr;
      link = &here->links[found->second];
      if (link->kind == Link::Kind::soft) {
        current = (link->target.starts_with('/') ? "" : base + "/") + link->target + std::string(rest);
        is_soft = true;
        break;
      }
      const bool is_last = rest.find_first_not_of('/') == std::string_view::npos;
      if (is_last || link->kind != Link::Kind::hard) return is_last ? link : nullptr;
      base += "/" + std::string(part);
      const ObjectHeader object = objects_.read(link->address);
      if (!object.is_group()) return nullptr;
      here = &group(object);
    }
    if (!is_soft) return link;
  }
  fail(Errc::format, "soft links at {} form a cycle", quote(path));
}

}  // namespace cbk::hdf5
