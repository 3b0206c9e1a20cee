#include "native/pjrt/device_tables.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace millpond::pjrt {
namespace {

std::vector<int64_t> RowsOfEither(const TableContents& a, const TableContents& b) {
  std::vector<int64_t> rows;
  std::set_union(a.changed_rows.begin(), a.changed_rows.end(), b.changed_rows.begin(),
                 b.changed_rows.end(), std::back_inserter(rows));
  return rows;
}

}  // namespace

void DeviceTables::Add(DeviceTable table) {
  const std::weak_ptr<const DeviceBuffer> buffer = std::exchange(table.buffer, nullptr);
  const std::lock_guard lock(mutex_);
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                [](const Entry& entry) { return entry.buffer.expired(); }),
                 entries_.end());
  entries_.push_back({std::move(table), buffer});
}

std::optional<DeviceTables::Found> DeviceTables::Find(const std::string& model,
                                                      const HostTensor& tensor) const {
  std::optional<Found> best;
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    const DeviceTable& table = entry.table;
    if (table.model != model || table.contents->base != tensor.contents->base ||
        table.type != tensor.type || table.dims != tensor.dims) {
      continue;
    }
    Found found{table.part, entry.buffer.lock(), RowsOfEither(*table.contents, *tensor.contents)};
    if (found.buffer == nullptr || (best && best->rows.size() <= found.rows.size())) continue;
    best = std::move(found);
  }
  return best;
}

}  // namespace millpond::pjrt
