#include "native/rest/number_token.h"

namespace millpond::rest {

void Recount(NumberToken* token) {
  token->digits = 0;
  token->digit_count = 0;
  for (const char* at = token->begin; at < token->end && *at != 'e' && *at != 'E'; ++at) {
    if (!IsDigit(at, token->end) || (*at == '0' && token->digit_count == 0)) continue;
    if (token->digit_count++ >= kMaxExactDigits) continue;
    token->digits = token->digits * 10 + static_cast<unsigned char>(*at - '0');
  }
}

}  // namespace millpond::rest
