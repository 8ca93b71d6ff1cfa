/* Keys, Host and Origin: look-alikes must not pass. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/auth.h"

static void keys_are_compared_over_their_whole_length(void **state)
{
    const struct dse_api_key keys[] = {{.text = "sk-first"}, {.text = "sk-second"}};
    struct dse_auth auth = {0};
    struct dse_error err;
    assert_int_equal(dse_auth_init(&auth, keys, 2, NULL, 0, &err), DSE_OK);
    assert_true(dse_auth_key_ok(&auth, "Bearer sk-first", NULL));
    assert_true(dse_auth_key_ok(&auth, NULL, "sk-second"));
    assert_true(dse_auth_key_ok(&auth, "Bearer wrong", "sk-second"));
    assert_string_equal(dse_auth_key_of(&auth, "Bearer sk-first", NULL)->text, "sk-first");
    assert_string_equal(dse_auth_key_of(&auth, "Bearer wrong", "sk-second")->text, "sk-second");
    assert_null(dse_auth_key_of(&auth, "Bearer wrong", NULL));
    static const char *const wrong[] = {"", "s", "sk-firs", "sk-firstt", "sk-firstsk-first", "SK-FIRST", "sk-second "};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(dse_auth_key_ok(&auth, NULL, wrong[i]));
    assert_false(dse_auth_key_ok(&auth, NULL, NULL));
    assert_false(dse_auth_key_ok(&auth, "sk-first", NULL));
    assert_false(dse_auth_key_ok(&auth, "Basic sk-first", NULL));
    dse_auth_deinit(&auth);
}

static void an_empty_key_is_refused(void **state)
{
    const struct dse_api_key keys[] = {{.text = ""}};
    struct dse_auth auth = {0};
    struct dse_error err;
    assert_int_equal(dse_auth_init(&auth, keys, 1, NULL, 0, &err), DSE_ERR_INVALID);
    dse_auth_deinit(&auth);
}

static void without_keys_everybody_may_ask(void **state)
{
    struct dse_auth auth = {0};
    assert_true(dse_auth_key_ok(&auth, NULL, NULL));
    assert_null(dse_auth_key_of(&auth, "Bearer any", NULL));
}

static void only_names_of_this_machine_are_local_hosts(void **state)
{
    static const char *const local[] = {"localhost", "LOCALHOST:80", "127.0.0.1",   "127.255.1.2:1",
                                        "[::1]",     "[::1]:8080",   "a.localhost", "a-b.c.localhost:1"};
    static const char *const foreign[] = {"",
                                          "evil.com",
                                          "localhost.evil.com",
                                          "127.0.0.1.evil.com",
                                          "127.evil.com",
                                          "128.0.0.1",
                                          "127.0.0",
                                          "127.0.0.1.",
                                          "127.0.0.256",
                                          "127.0.0.1:x",
                                          "evil.com#.localhost",
                                          "evil.com/.localhost",
                                          "localhost@evil.com",
                                          "[::2]",
                                          "::1",
                                          ".localhost@x",
                                          "0.0.0.0",
                                          "1270.0.0.1",
                                          "localhost:80:evil"};
    for (size_t i = 0; i < sizeof local / sizeof *local; i++)
        assert_true(dse_auth_host_is_local(local[i]));
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (dse_auth_host_is_local(foreign[i])) fail_msg("%s passed", foreign[i]);
    assert_true(dse_auth_host_is_local(NULL));
}

static void only_origins_of_this_machine_pass_by_default(void **state)
{
    struct dse_auth auth = {0};
    assert_true(dse_auth_origin_ok(&auth, "http://localhost:3000"));
    assert_true(dse_auth_origin_ok(&auth, "https://127.0.0.1"));
    static const char *const foreign[] = {"null",
                                          "",
                                          "localhost",
                                          "ftp://localhost",
                                          "http://localhost.evil.com",
                                          "http://localhost@evil.com",
                                          "http://evil.com/localhost",
                                          "http://",
                                          "http://evil.com?localhost",
                                          "http://127.0.0.1.evil.com"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (dse_auth_origin_ok(&auth, foreign[i])) fail_msg("%s passed", foreign[i]);
    assert_true(dse_auth_origin_is_foreign_page(&auth, "https://evil.com"));
    assert_true(dse_auth_origin_is_foreign_page(&auth, "null"));
    assert_false(dse_auth_origin_is_foreign_page(&auth, "vscode-webview://x"));
}

static void configured_origins_must_match_exactly(void **state)
{
    const char *origins[] = {"https://app.example"};
    struct dse_auth auth = {0};
    struct dse_error err;
    assert_int_equal(dse_auth_init(&auth, NULL, 0, origins, 1, &err), DSE_OK);
    assert_true(dse_auth_origin_ok(&auth, "https://app.example"));
    assert_false(dse_auth_origin_ok(&auth, "https://app.example.evil.com"));
    assert_false(dse_auth_origin_ok(&auth, "http://app.example"));
    dse_auth_deinit(&auth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_compared_over_their_whole_length),
        cmocka_unit_test(an_empty_key_is_refused),
        cmocka_unit_test(without_keys_everybody_may_ask),
        cmocka_unit_test(only_names_of_this_machine_are_local_hosts),
        cmocka_unit_test(only_origins_of_this_machine_pass_by_default),
        cmocka_unit_test(configured_origins_must_match_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
