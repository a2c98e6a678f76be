/* SPDX-License-Identifier: Apache-2.0 */
/* Something for "symmshim run" to preload where it is not the shim that is tested. */
extern const char tools_fake_shim[];
const char tools_fake_shim[] = "harmless";
