#include "native/memory/page_pins.h"

#include <algorithm>

namespace millpond::memory {

bool PinnedPieces::PinNext(size_t end, const std::shared_ptr<PagePinner>& pinner) {
  const size_t begin = bytes();
  const size_t piece_end = std::min(begin + kPieceBytes, end);
  if (stuck_end_ > 0 || begin >= piece_end || !pinner->Pin(start_ + begin, piece_end - begin))
    return false;
  pieces_.push_back({begin, piece_end, pinner});
  return true;
}

bool PinnedPieces::CutBack(size_t end) {
  while (bytes() > end) {
    const Piece& last = pieces_.back();
    if (!last.pinner->Unpin(start_ + last.begin, last.end - last.begin)) {
      stuck_end_ = std::max(stuck_end_, last.end);
    }
    pieces_.pop_back();
  }
  return stuck_end_ <= end;
}

}  // namespace millpond::memory
