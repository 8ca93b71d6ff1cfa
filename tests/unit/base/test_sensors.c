/* Sensors read from a made-up /sys: layouts of a Raspberry Pi, a Jetson, a desktop, and broken files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/sensors.h"
#include "temp_root.h"

static struct dse_sensors sensors;

static void put(const char *path, const char *text)
{
    char full[512], folder[512];
    struct dse_error err;
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(folder, sizeof folder, "%s", full);
    *strrchr(folder, '/') = '\0';
    assert_int_equal(dse_make_directories(folder, &err), DSE_OK);
    assert_int_equal(dse_file_write_atomic(full, text, strlen(text), 0644, &err), DSE_OK);
}

/* Of the sensor with this label; fails the test when there is none or more than one. */
static double value(const struct dse_sensor_list *list, const char *label)
{
    int found = -1;
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->items[i].label, label) != 0) continue;
        assert_int_equal(found, -1);
        found = i;
    }
    if (found < 0) fail_msg("no sensor %s", label);
    return list->items[found].value;
}

static int start(void **state)
{
    memset(&sensors, 0, sizeof sensors);
    return make_root(state);
}

static void an_empty_machine_has_no_sensors(void **state)
{
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.temperatures.count + sensors.frequencies.count, 0);
    assert_int_equal(sensors.powers.count + sensors.throttled.count, 0);
}

static void zones_are_named_by_their_type_and_two_of_one_type_stay_apart(void **state)
{
    put("/sys/class/thermal/thermal_zone0/type", "cpu-thermal\n");
    put("/sys/class/thermal/thermal_zone0/temp", "48312\n");
    put("/sys/class/thermal/thermal_zone1/type", "acpitz\n");
    put("/sys/class/thermal/thermal_zone1/temp", "-5000\n");
    put("/sys/class/thermal/thermal_zone10/type", "acpitz\n");
    put("/sys/class/thermal/thermal_zone10/temp", "27800\n");
    put("/sys/class/thermal/thermal_zone2/type", "off\n"); /* without a temperature */
    put("/sys/class/thermal/thermal_zone3/temp", "hot\n");
    put("/sys/class/hwmon/hwmon0/name", "cpu_thermal\n"); /* the same sensor again */
    put("/sys/class/hwmon/hwmon0/temp1_input", "48312\n");
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.temperatures.count, 3);
    assert_true(value(&sensors.temperatures, "cpu-thermal") == 48.312);
    assert_true(value(&sensors.temperatures, "acpitz") == -5.0);
    assert_true(value(&sensors.temperatures, "acpitz_10") == 27.8);
    dse_sensors_read(root, &sensors); /* again: not added to */
    assert_int_equal(sensors.temperatures.count, 3);
}

static void hwmon_tells_temperatures_where_there_are_no_zones(void **state)
{
    put("/sys/class/hwmon/hwmon2/name", "k10temp\n");
    put("/sys/class/hwmon/hwmon2/temp1_input", "61250\n");
    put("/sys/class/hwmon/hwmon2/temp1_label", "Tctl\n");
    put("/sys/class/hwmon/hwmon2/temp3_input", "59000\n");
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.temperatures.count, 2);
    assert_true(value(&sensors.temperatures, "k10temp Tctl") == 61.25);
    assert_true(value(&sensors.temperatures, "k10temp") == 59.0);
}

static void rails_tell_power_or_volts_and_amperes(void **state)
{
    put("/sys/class/hwmon/hwmon0/name", "amdgpu\n");
    put("/sys/class/hwmon/hwmon0/power1_input", "4500000\n");
    put("/sys/class/hwmon/hwmon1/name", "ina3221\n");
    put("/sys/class/hwmon/hwmon1/in1_label", "VDD_IN\n");
    put("/sys/class/hwmon/hwmon1/in1_input", "5000\n");
    put("/sys/class/hwmon/hwmon1/curr1_input", "1200\n");
    put("/sys/class/hwmon/hwmon1/curr2_input", "1200\n"); /* no volts */
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.powers.count, 2);
    assert_true(value(&sensors.powers, "amdgpu") == 4.5);
    assert_true(value(&sensors.powers, "ina3221 VDD_IN") == 6.0);
}

static void clocks_are_by_number_of_the_cpu(void **state)
{
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "1800000\n");
    put("/sys/devices/system/cpu/cpu11/cpufreq/scaling_cur_freq", "600000\n");
    put("/sys/devices/system/cpu/cpufreq/policy0/scaling_cur_freq", "1\n"); /* no CPU */
    put("/sys/devices/system/cpu/cpu2/online", "0\n");
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.frequencies.count, 2);
    assert_true(value(&sensors.frequencies, "0") == 1.8e9);
    assert_true(value(&sensors.frequencies, "11") == 6e8);
}

static void throttling_is_told_by_source(void **state)
{
    put("/sys/class/thermal/cooling_device0/type", "Fan\n");
    put("/sys/class/thermal/cooling_device0/cur_state", "3\n");
    put("/sys/class/thermal/cooling_device1/type", "thermal-cpufreq-0\n");
    put("/sys/class/thermal/cooling_device1/cur_state", "0\n");
    put("/sys/devices/platform/soc/soc:firmware/get_throttled", "50000\n"); /* has been, is not */
    put("/proc/self/cgroup", "0::/pod\n");
    put("/sys/fs/cgroup/pod/cpu.stat", "usage_usec 5\nnr_periods 9\nnr_throttled 7\nthrottled_usec 8\n");
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.throttled.count, 3);
    assert_true(value(&sensors.throttled, "thermal") == 0);
    assert_true(value(&sensors.throttled, "firmware") == 0);
    assert_true(value(&sensors.throttled, "quota") == 0); /* how long ago is not known at the first reading */

    put("/sys/class/thermal/cooling_device1/cur_state", "2\n");
    put("/sys/devices/platform/soc/soc:firmware/get_throttled", "50005\n");
    put("/sys/fs/cgroup/pod/cpu.stat", "nr_throttled 8\n");
    dse_sensors_read(root, &sensors);
    assert_true(value(&sensors.throttled, "thermal") == 1);
    assert_true(value(&sensors.throttled, "firmware") == 1);
    assert_true(value(&sensors.throttled, "quota") == 1);
    dse_sensors_read(root, &sensors);
    assert_true(value(&sensors.throttled, "quota") == 0);
}

static void more_sensors_than_there_is_room_for_are_left_out(void **state)
{
    for (int i = 0; i < DSE_MAX_SENSORS + 20; i++) {
        char path[128];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/scaling_cur_freq", i);
        put(path, "1000\n");
    }
    dse_sensors_read(root, &sensors);
    assert_int_equal(sensors.frequencies.count, DSE_MAX_SENSORS);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, start, remove_root)
    const struct CMUnitTest tests[] = {
        TEST(an_empty_machine_has_no_sensors),
        TEST(zones_are_named_by_their_type_and_two_of_one_type_stay_apart),
        TEST(hwmon_tells_temperatures_where_there_are_no_zones),
        TEST(rails_tell_power_or_volts_and_amperes),
        TEST(clocks_are_by_number_of_the_cpu),
        TEST(throttling_is_told_by_source),
        TEST(more_sensors_than_there_is_room_for_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
