// Compiled in front of the generated code: the declarations are checked against the real header, so a changed
// struct or signature is a build error and never a silent misread.
#include "shim/turbo_shim.h"
#include "shim/turbo_text.h"
#include "shim/turbo_keys.h"
#include "shim/turbo_profile.h"
#include "shim/turbo_state.h"
