#include "host/formats/h5/edit.hpp"

#include <algorithm>

#include "host/base/copy.hpp"
#include "host/base/in_place.hpp"
#include "host/base/replaced.hpp"
#include "host/base/transaction.hpp"
#include "host/formats/h5/stored_pickles.hpp"
#include "host/value/element.hpp"

namespace cbk::h5 {
namespace {

using namespace std::string_literals;
using namespace std::string_view_literals;

constexpr uint64_t largest_value = 16ULL << 20;
constexpr uint16_t largest_rank = 4096;
constexpr size_t max_attribute = 65528;

/// Reads the superblock extension of version 2 or 3. Errors: `unsupported` for files in which free space or
/// pages would become wrong.
void read_extension(const hdf5::Objects& objects, hdf5::GroupRanks& ranks) {
  const uint64_t address = objects.image().superblock().extension;
  if (address == hdf5::undefined_address) return;
  for (const hdf5::Message& message : objects.read(address).messages) {
    hdf5::Cursor in(message.body, objects.image().sizes(), "the superblock's extension");
    const uint8_t version = in.u8();
    if (message.type == hdf5::MessageType::tree_ranks) {
      in.u16();
      ranks.tree = in.u16();
      ranks.leaf = in.u16();
    } else if (message.type == hdf5::MessageType::file_space) {
      const uint8_t strategy = in.u8();
      const bool is_kept = version == 0 ? strategy == 1 : strategy == 1 || in.u8() != 0;
      if (is_kept)
        fail(Errc::unsupported, "the file keeps track of its free space; run h5repack on it first");
    } else if (message.type == hdf5::MessageType::cache_image) {
      fail(Errc::unsupported, "the file holds an image of HDF5's cache; run h5repack on it first");
    }
  }
}

/// Adds the messages that `keep` selects, without attributes.
template <typename Keep>
void copy_messages(hdf5::HeaderBuilder& header, const hdf5::ObjectHeader& object, Keep keep) {
  if (object.version == 2) header.use_version_2();
  for (const hdf5::Message& message : object.messages) {
    using enum hdf5::MessageType;
    if (message.type == attribute || message.type == attribute_info || message.type == references) continue;
    if (keep(message.type)) header.add(message.type, as_text(message.body), message.flags);
  }
}

using AttributeList = std::vector<std::pair<std::string, std::string>>;  // name, as it is stored

/// Finishes an object. If one attribute does not fit a message, all of them go to dense storage.
uint64_t add_object(hdf5::Builder& builder, hdf5::HeaderBuilder header, const AttributeList& attributes) {
  const bool is_dense = std::any_of(attributes.begin(), attributes.end(),
                                    [](const auto& each) { return each.second.size() > max_attribute; });
  if (is_dense) return builder.add_with_dense_attributes(std::move(header), attributes);
  for (const auto& [name, body] : attributes) header.add(hdf5::MessageType::attribute, body);
  return builder.add(header.finish());
}

AttributeList stored_attributes(const hdf5::Objects& objects, const hdf5::ObjectHeader& object) {
  AttributeList list;
  for (const hdf5::Attribute& each : objects.attributes(object))
    list.emplace_back(each.name, as_text(each.body));
  return list;
}

}  // namespace

FileEdit::FileEdit(std::shared_ptr<const MappedFile> file, const OpenOptions& options)
    : mapped_(std::move(file)),
      files_(mapped_, options.allow_external),
      datasets_(files_),
      file_(*files_.main()) {
  const hdf5::Superblock& superblock = file_.objects().image().superblock();
  if (superblock.sizes.address != 8 || superblock.sizes.length != 8) {
    fail(Errc::unsupported, "addresses of {} and lengths of {} bytes; run h5repack on the file first",
         superblock.sizes.address, superblock.sizes.length);
  }
  if (superblock.is_open_for_writing) {
    fail(Errc::unsupported,
         "the file is open for writing, or was not closed; h5clear -s helps with the latter");
  }
  if (superblock.end == hdf5::undefined_address || superblock.end < superblock.start + superblock.size ||
      superblock.end < superblock.base) {
    hdf5::damaged("its end is before its beginning");
  }
  check_pickles(file_, options.allow_records);
  if (file_.root().references > 1) fail(Errc::unsupported, "its root group has further names");
  ranks_ = superblock.ranks;
  read_extension(file_.objects(), ranks_);
  for (const uint16_t rank : {ranks_.leaf, ranks_.tree}) {
    if (rank == 0 || rank > largest_rank) hdf5::damaged("group nodes of {} entries", 2 * rank);
  }
  superblock_ = as_text(mapped_->bytes().subspan(superblock.start, superblock.size));
  for (const hdf5::Link& link : file_.links()) {
    if (link.kind == hdf5::Link::Kind::other)
      fail(Errc::unsupported, "{} is a user-defined link", quote(link.name));
    if (link.name.empty() || link.name.find('\0') != std::string::npos)
      hdf5::damaged("a link without a proper name");
    links_.emplace(link.name, Target{link, std::nullopt});
  }
  old_counts_ = count_links();
}

std::vector<std::string> FileEdit::names() const {
  std::vector<std::string> names;
  names.reserve(links_.size());
  for (const auto& [name, target] : links_) names.push_back(name);
  return names;
}

std::optional<Value> FileEdit::attribute(const std::string& name) const {
  if (const auto text = texts_.find(name); text != texts_.end()) return Value(text->second);
  return file_.attributes(file_.root()).value(name);
}

void FileEdit::set_attribute(const std::string& name, const std::string& text) {
  const auto old = attribute(name);
  if (old && old->is(Value::Kind::string) && old->as_string() == text) return;
  texts_[name] = text;
  is_changed_ = true;
}

FileEdit::Target& FileEdit::target(const std::string& name) {
  const auto found = links_.find(name);
  if (found == links_.end()) fail(Errc::key, "the file has no {}", quote(name));
  return found->second;
}

Located FileEdit::locate(const std::string& name) {
  Located located = datasets_.follow(files_.main(), target(name).link);
  if (located.file != files_.main()) fail(Errc::unsupported, "{} is in another file", quote(name));
  if (!located.object.is_dataset()) fail(Errc::unsupported, "{} is not a dataset", quote(name));
  return located;
}

Value FileEdit::scalar(const std::string& name) {
  return within(quote(name), [&] {
    const Target& found = target(name);
    if (!found.value) return datasets_.scalar(datasets_.follow(files_.main(), found.link));
    const NewValue& value = values_[*found.value];
    if (numel_of(value.shape) != 1) fail(Errc::format, "it has the shape {}", to_string(value.shape));
    return element_value(value.dtype, value.data);
  });
}

void FileEdit::link(const std::string& name, const std::string& source) {
  if (name.empty() || name == "." || name.find_first_of("/\0"sv) != std::string::npos)
    fail(Errc::key, "{} cannot be the name of a dataset", quote(name));
  if (has(name)) fail(Errc::value, "{} exists already", quote(name));
  Target made{{name, hdf5::Link::Kind::hard, hdf5::undefined_address, "", ""}, target(source).value};
  made.link.address = locate(source).object.address;
  links_.emplace(name, std::move(made));
  is_changed_ = true;
}

void FileEdit::set_value(const std::string& name, const Value& value) {
  within(quote(name), [&] {
    Located located = locate(name);
    const hdf5::Dataset dataset = hdf5::read_dataset(file_.objects(), located.object);
    if (dataset.space.is_null) return;
    const auto dtype = dataset.type.dtype();
    if (!dtype) fail(Errc::dtype, "elements of type {} cannot hold a number", dataset.type.describe());
    const uint64_t size = checked_mul(dataset.space.count(), dataset.type.size, "a dataset");
    if (size > largest_value) {
      fail(Errc::unsupported, "it has {}; only values up to {} are changed", format_size(size),
           format_size(largest_value));
    }
    check_fits(*dtype, value);
    MemoryLoan memory(*file_.memory(), 2 * size);  // what it is now, and what it shall be
    NewValue made{located.object, *dtype, dataset.type.is_swapped() ? dataset.type.component_size() : 0,
                  dataset.space.shape(), full_tensor(*dtype, dataset.space.shape(), value).to_bytes()};
    Target& changed = target(name);
    const bool is_same = changed.value ? values_[*changed.value].data == made.data
                                       : datasets_.leaf(located, {}).as_tensor().to_bytes() == made.data;
    if (is_same) return;
    file_.memory()->charge(size);
    changed.value = values_.size();
    values_.push_back(std::move(made));
    is_changed_ = true;
  });
}

std::map<uint64_t, uint32_t> FileEdit::count_links() const {
  std::map<uint64_t, uint32_t> counts;
  for (const auto& [name, target] : links_) {
    if (target.kind() == hdf5::Link::Kind::hard && !target.value) ++counts[target.link.address];
  }
  return counts;
}

FileEdit::Addresses FileEdit::add_values(hdf5::Builder& builder) {
  std::map<size_t, uint32_t> names;
  for (const auto& [name, target] : links_) {
    if (target.value) ++names[*target.value];
  }
  Addresses added;
  for (const auto& [index, count] : names) {
    const NewValue& value = values_[index];
    std::string data(as_text(value.data));
    for (size_t at = 0; value.swapped != 0 && at < data.size(); at += value.swapped) {
      std::reverse(data.begin() + static_cast<ptrdiff_t>(at),
                   data.begin() + static_cast<ptrdiff_t>(at + value.swapped));
    }
    hdf5::HeaderBuilder header;
    header.set_references(count);
    copy_messages(header, value.object, [](hdf5::MessageType type) {
      using enum hdf5::MessageType;
      return type != dataspace && type != layout && type != filters && type != external_files;
    });
    header.add(hdf5::MessageType::dataspace,
               value.shape.empty() ? hdf5::scalar_dataspace() : hdf5::encode_dataspace(value.shape));
    header.add(hdf5::MessageType::layout, hdf5::encode_contiguous(builder.add(data), data.size()));
    added[index] = add_object(builder, std::move(header), stored_attributes(file_.objects(), value.object));
  }
  return added;
}

FileEdit::Addresses FileEdit::add_recounted(hdf5::Builder& builder) {
  Addresses moved;
  for (const auto& [address, count] : count_links()) {
    const auto found = old_counts_.find(address);
    const uint32_t old = found == old_counts_.end() ? 0 : found->second;
    if (count == old) continue;
    const hdf5::ObjectHeader object = file_.objects().read(address);
    if (object.references > old) {
      // Names in groups below the root would keep the old header. A count that is too high does no harm.
      if (count < old) continue;
      fail(Errc::unsupported, "a dataset to rename also has names in groups below the root");
    }
    hdf5::HeaderBuilder header;
    header.set_references(count);
    copy_messages(header, object, [](hdf5::MessageType) { return true; });
    moved[address] = add_object(builder, std::move(header), stored_attributes(file_.objects(), object));
  }
  return moved;
}

uint64_t FileEdit::add_root(hdf5::Builder& builder, std::optional<hdf5::GroupTables>& tables) {
  const Addresses values = add_values(builder);
  const Addresses moved = add_recounted(builder);
  const auto address_of = [&](const Target& target) {
    if (target.value) return values.at(*target.value);
    const auto found = moved.find(target.link.address);
    return found == moved.end() ? target.link.address : found->second;
  };
  hdf5::HeaderBuilder header;
  copy_messages(header, file_.root(), [](hdf5::MessageType type) {
    using enum hdf5::MessageType;
    return type != symbol_table && type != link_info && type != group_info && type != link;
  });
  const bool has_external = std::any_of(links_.begin(), links_.end(), [](const auto& each) {
    return each.second.kind() == hdf5::Link::Kind::external;
  });
  if (has_external) {
    // Old-style groups cannot hold these. Links in messages are searched linearly.
    header.use_version_2();
    header.add(hdf5::MessageType::link_info,
               "\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"sv);
    header.add(hdf5::MessageType::group_info, "\0\0"sv);
    for (const auto& [name, target] : links_) {
      const hdf5::Link& link = target.link;
      header.add(hdf5::MessageType::link, target.kind() == hdf5::Link::Kind::external
                                              ? hdf5::encode_external_link(name, link.file, link.target)
                                          : target.kind() == hdf5::Link::Kind::soft
                                              ? hdf5::encode_soft_link(name, link.target)
                                              : hdf5::encode_hard_link(name, address_of(target)));
    }
  } else {
    hdf5::Builder::Links hard;
    hdf5::Builder::SoftLinks soft;
    for (const auto& [name, target] : links_) {
      if (target.kind() == hdf5::Link::Kind::soft) {
        soft.emplace(name, target.link.target);
      } else {
        hard.emplace(name, address_of(target));
      }
    }
    tables = builder.add_group_tables(hard, soft);
    header.add(hdf5::MessageType::symbol_table, hdf5::encode_symbol_table(tables->tree, tables->heap));
  }

  AttributeList attributes = stored_attributes(file_.objects(), file_.root());
  for (const auto& [name, text] : texts_) {
    std::string body =
        hdf5::encode_attribute(name, hdf5::text_datatype(), hdf5::scalar_dataspace(), builder.text(text));
    const auto old = std::find_if(attributes.begin(), attributes.end(),
                                  [&name = name](const auto& each) { return each.first == name; });
    if (old == attributes.end()) {
      attributes.emplace_back(name, std::move(body));
    } else {
      old->second = std::move(body);
    }
  }
  return add_object(builder, std::move(header), attributes);
}

FileEdit::Change FileEdit::build() {
  const hdf5::Superblock& superblock = file_.objects().image().superblock();
  const uint64_t start = align_up(superblock.end - superblock.base, 8);
  Change change;
  change.offset = superblock.end;
  change.tail.assign(superblock.base + start - superblock.end, '\0');
  hdf5::Builder builder(
      start, [&](uint64_t /*address*/, std::string_view bytes) { change.tail += bytes; }, ranks_);
  std::optional<hdf5::GroupTables> tables;
  const uint64_t root = add_root(builder, tables);
  builder.finish();
  change.superblock = hdf5::replace_root(mapped_->bytes(), superblock, root, tables ? &*tables : nullptr,
                                         change.offset + change.tail.size());
  return change;
}

void FileEdit::save_as(const fs::path& target, bool overwrite, bool sync,
                       const std::function<void(uint64_t, uint64_t)>& progress) {
  if (mapped_->is_same_file(target)) {
    fail(Errc::value,
         "the copy '{}' would replace the file itself; change it in place, or choose another name",
         target.string());
  }
  Change change;
  change.offset = mapped_->size();
  if (is_changed_) change = within(quote(path().string()), [&] { return build(); });
  const uint64_t total = change.offset + change.tail.size();
  Transaction transaction;
  transaction.expect_unchanged({mapped_});
  StagedFile& copy = transaction.file(target, overwrite);
  copy.reserve(total);
  copy_file(*mapped_, change.offset, copy, [&](uint64_t done) {
    if (progress) progress(done, total);
  });
  if (is_changed_) {
    copy.write(change.offset, as_bytes(change.tail));
    copy.write(file_.objects().image().superblock().start, as_bytes(change.superblock));
  }
  if (progress) progress(total, total);
  transaction.commit(sync);
}

namespace {

/// Restores the old superblock first, because the tail may be valid already.
void take_back(InPlaceFile& file, uint64_t start, std::string_view superblock, uint64_t end) noexcept {
  try {
    file.write(start, as_bytes(superblock));
    file.resize(end);
  } catch (const Error&) {  // the first failure is the one to report
  }
}

}  // namespace

void FileEdit::commit(bool sync) {
  (void)replaceable_file(path(), true);  // refuses a link out of the folder
  if (!is_changed_) return;
  const Change change = within(quote(path().string()), [&] { return build(); });
  const uint64_t start = file_.objects().image().superblock().start;
  const uint64_t end = change.offset + change.tail.size();
  InPlaceFile file(path());
  if (!file.is(*mapped_) || as_text(mapped_->bytes().subspan(start, superblock_.size())) != superblock_)
    fail(Errc::io, "'{}' was changed by another program meanwhile", path().string());
  try {
    // Removes the remains of a killed edit.
    if (file.size() > end) file.resize(end);
    file.write(change.offset, as_bytes(change.tail));
    file.settle(change.offset);
    // This few bytes within one page are written completely or not at all.
    file.write(start, as_bytes(change.superblock));
  } catch (const Error&) {
    take_back(file, start, superblock_, change.offset);
    throw;
  }
  if (sync) file.sync();
}

}  // namespace cbk::h5
