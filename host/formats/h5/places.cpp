#include "host/formats/h5/places.hpp"

#include <algorithm>
#include <tuple>

namespace cbk::h5 {
namespace {

constexpr uint64_t header_size = 12;  // at least, in every version

}  // namespace

void Places::add(const hdf5::File& file, const hdf5::ObjectHeader& object, const hdf5::Dataset& dataset,
                 const std::string& name) {
  const hdf5::Image& image = file.objects().image();
  file.memory()->charge(2 * sizeof(Place) + sizeof(std::string) + name.size());
  places_.push_back({&file, image.base() + object.address, header_size, object.address, names_.size(), true});
  const hdf5::Layout& layout = dataset.layout;
  const uint64_t size = dataset.space.count() * dataset.type.size;
  const bool has_data = layout.kind == hdf5::Layout::Kind::contiguous && size > 0 &&
                        layout.address < image.file()->size();  // not undefined, nor beyond a cut
  if (has_data)
    places_.push_back({&file, image.base() + layout.address, size, object.address, names_.size(), false});
  names_.push_back(name);
}

void Places::refuse_overlaps() const {
  std::vector<Place> order = places_;
  std::ranges::sort(order, {}, [](const Place& p) { return std::tuple(p.file, p.begin, p.size); });
  for (size_t i = 1; i < order.size(); ++i) {
    const Place& before = order[i - 1];
    const Place& next = order[i];
    const bool is_one =
        before.begin == next.begin && before.owner == next.owner && before.is_header == next.is_header;
    if (is_one || before.file != next.file || next.begin - before.begin >= before.size) continue;
    const auto text = [&](const Place& place) {
      return fmt::format("the {} of dataset {}", place.is_header ? "header" : "data",
                         quote(names_[place.name]));
    };
    hdf5::damaged("{} and {} overlap, at byte {}", text(before), text(next), next.begin);
  }
  for (size_t i = 0; i < order.size(); ++i) {
    const Place& place = order[i];
    const bool is_known = i > 0 && order[i - 1].file == place.file && order[i - 1].begin == place.begin;
    if (is_known || place.is_header) continue;
    within([&] { return "dataset " + quote(names_[place.name]); },
           [&] {
             place.file->objects().image().claim({}, {{place.begin, place.begin + place.size}});
           });
  }
}

}  // namespace cbk::h5
