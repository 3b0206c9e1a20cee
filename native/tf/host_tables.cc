#include "native/tf/host_tables.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace millpond::tf {

std::set<ResourceKey> ChooseHostTables(
    const std::map<ResourceKey, SignatureSplit::Variable>& variables, TablePlace place,
    int64_t room_bytes) {
  int64_t device_bytes = 0;
  std::vector<std::pair<int64_t, ResourceKey>> tables;
  for (const auto& [key, variable] : variables) {
    device_bytes += variable.bytes;
    if (variable.is_table) tables.emplace_back(variable.bytes, key);
  }
  std::stable_sort(tables.begin(), tables.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::set<ResourceKey> on_host;
  for (const auto& [bytes, key] : tables) {
    const bool fits =
        place == TablePlace::kDevice || (place == TablePlace::kAuto && device_bytes <= room_bytes);
    if (fits) break;
    device_bytes -= bytes;
    on_host.insert(key);
  }
  return on_host;
}

}  // namespace millpond::tf
