// Measures the cost of a request's look-up: by the default version, by label, and with a canary, by
// the value of a header and at random. All threads look up in one map of 16 names.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "native/bench/measure.h"
#include "native/servable/serving_map.h"
#include "tests/native/fake_entry.h"

namespace millpond::bench {
namespace {

using servable::Routing;
using servable::ServingMap;
using servable::VersionChoice;

constexpr char kHeader[] = "user-id";

// Metadata that is found at once, so that the cost of gRPC's metadata is not measured.
class OneValue final : public servable::RequestMetadata {
 public:
  std::optional<std::string_view> Find(std::string_view) const override {
    return "user-0001-of-a-tenant";
  }
};

// Publishes three versions of each name. Publish fails only for duplicates.
void Fill(ServingMap& map, const Routing& routing) {
  for (int model = 0; model < 16; ++model) {
    const std::string name = "model_" + std::to_string(model);
    for (int64_t version = 1; version <= 3; ++version) {
      (void)map.Publish(servable::MakeFakeEntry(name, version), routing);
    }
  }
}

void MeasureLookUp(const char* name, const Routing& routing, const VersionChoice& choice) {
  ServingMap map;
  Fill(map, routing);
  for (const int thread_count : {1, 2}) {
    Measure(name, thread_count, 5'000'000, [&](int, int) {
      const auto handle = map.LookUp("model_7", choice);
      Keep(&handle);
    });
  }
}

}  // namespace
}  // namespace millpond::bench

int main() {
  using namespace millpond::bench;
  const OneValue user;
  MeasureLookUp("look up, default version", {2}, {{}, {}, &user});
  MeasureLookUp("look up, label", {2, {{"next", 3}, {"stable", 2}}}, {{}, "stable", &user});
  MeasureLookUp("look up, sticky canary", {2, {}, 3, 0.1, kHeader}, {{}, {}, &user});
  MeasureLookUp("look up, random canary", {2, {}, 3, 0.1}, {{}, {}, &user});
}
