#include "native/rpc/place_limits.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace millpond::rpc {
namespace {

// gRPC's connections may have a half of the process's descriptors, and the other protocol's a
// sixth.
constexpr int64_t kParts = 2;
constexpr int64_t kPartsOfMakingPlace = 6;

// The connections beyond the limit of a port whose connections make place: so many, or a twelfth of
// the descriptors.
constexpr int64_t kReservePlaces = 128;
constexpr int64_t kReserveParts = 12;

// An eighth of the free descriptors is the server's, another one for connections that make place.
constexpr int64_t kOwnParts = 8;
// A sixteenth of the free descriptors is taken only while no connection can make place.
constexpr int64_t kScarceParts = 16;

int64_t AtMost(int64_t count, int64_t wanted_max) {
  return wanted_max > 0 ? std::min(count, wanted_max) : count;
}

int64_t FreeOf(const Descriptors& descriptors) {
  return std::max<int64_t>(descriptors.limit - descriptors.in_use, 0);
}

}  // namespace

Descriptors Descriptors::Now() {
  Descriptors now;
  rlimit limit{};
  const bool is_known =
      getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur <= static_cast<rlim_t>(INT32_MAX);
  now.limit = is_known ? static_cast<int64_t>(limit.rlim_cur) : INT32_MAX;
  const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  now.in_use = lowest < 0 ? now.limit : lowest;
  if (lowest >= 0) close(lowest);
  return now;
}

void Descriptors::MakeRoom(int64_t limit) {
  const int last = static_cast<int>(std::min(limit, kRoomMax)) - 1;
  const int lowest = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (lowest < 0) return;
  // The table stays as long as it is now. If a limit forbids that, it grows later.
  const int highest = fcntl(lowest, F_DUPFD_CLOEXEC, last);
  if (highest >= 0) close(highest);
  close(lowest);
}

PlaceLimits PlaceLimits::OfGrpc(const Descriptors& descriptors, int64_t wanted_max) {
  PlaceLimits places;
  places.count_full = places.count_max = AtMost(descriptors.limit / kParts, wanted_max);
  places.descriptor_max = descriptors.limit - 2 * (FreeOf(descriptors) / kOwnParts);
  places.descriptor_full = places.descriptor_max;
  return places;
}

PlaceLimits PlaceLimits::OfMakingPlace(const Descriptors& descriptors, int64_t wanted_max) {
  PlaceLimits places;
  places.count_full = AtMost(descriptors.limit / kPartsOfMakingPlace, wanted_max);
  places.count_max =
      places.count_full + std::min(kReservePlaces, descriptors.limit / kReserveParts);
  const int64_t free = FreeOf(descriptors);
  places.descriptor_max = descriptors.limit - free / kOwnParts;
  places.descriptor_full = places.descriptor_max - free / kScarceParts;
  return places;
}

Room PlaceLimits::RoomFor(int64_t count, int64_t descriptor) const {
  if (count >= count_max || descriptor >= descriptor_max) return Room::kNone;
  const bool is_scarce = count >= count_full || descriptor >= descriptor_full;
  return is_scarce ? Room::kScarce : Room::kFree;
}

}  // namespace millpond::rpc
